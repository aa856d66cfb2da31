// Encodes and decodes with the tokenizers of transformers.js. Standard input: a list of {file, settings, lines, ids}.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const packages = process.argv[2];
const { Tokenizer } = await import(pathToFileURL(`${packages}/@huggingface/tokenizers/dist/tokenizers.mjs`));
const answers = [];
for (const { file, settings, lines, ids } of JSON.parse(readFileSync(0, "utf8"))) {
  const tokenizer = new Tokenizer(file, settings);
  const text = (row) => (row.length ? tokenizer.decode(row, { skip_special_tokens: true }) : "");
  answers.push({ ids: lines.map((line) => tokenizer.encode(line).ids), texts: ids.map(text) });
}
process.stdout.write(JSON.stringify(answers));
