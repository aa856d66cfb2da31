// Edits a text sentence by sentence, and counts what the writer asks for: node writer.mjs WRITER_JS < {"count", "edits"}
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { Writer } = await import(pathToFileURL(process.argv[2]).href);
const { count, edits } = JSON.parse(readFileSync(0));
const asked = [];
const api = {
  async *stream({ q }) {
    asked.push(q);
    yield ["done", { lines: [{ source_pieces: [], translations: [{ text: q }] }] }];
  },
};
const writer = new Writer(api, () => {});
const rest = Array.from({ length: count - 1 }, (_, n) => `There are ${n} dogs here.`).join(" ");
const counts = [];
for (let edit = 0; edit <= edits; edit += 1) {
  asked.length = 0;
  writer.write(`It was edited ${edit} times. ${rest}`, { run: "run", segment: "paragraph" });
  while (writer.isGoing) await new Promise((resolve) => setTimeout(resolve));
  counts.push(asked.length);
}
console.log(JSON.stringify(counts));
