// Encodes lines with tokenizer.json files, and decodes ids: node tokenizer.mjs TOKENIZER_JS < cases.json
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { Tokenizer } = await import(pathToFileURL(process.argv[2]).href);
const found = JSON.parse(readFileSync(0)).map(({ file, lines, ids }) => {
  const tokenizer = new Tokenizer(file);
  return { ids: lines.map((line) => tokenizer.encode(line)), texts: ids.map((row) => tokenizer.decode(row)), tokens: ids.map((row) => tokenizer.tokens(row)) };
});
console.log(JSON.stringify(found));
