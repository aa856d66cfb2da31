// Runs the program of a model card, which prints a translation. Standard input: {folder, code, line}.
import { readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { pathToFileURL } from "node:url";

const library = pathToFileURL(`${process.argv[2]}/@huggingface/transformers/dist/transformers.node.mjs`);
const { folder, code, line } = JSON.parse(readFileSync(0, "utf8"));
const { env } = await import(library);
env.allowRemoteModels = false;
env.localModelPath = dirname(folder);
env.useFSCache = false;
globalThis.FOLDER = basename(folder);
globalThis.LINE = line;
console.log = (found) => process.stdout.write(JSON.stringify(found));
const program = join(dirname(folder), "program.mjs");
writeFileSync(program, code.replace('"@huggingface/transformers"', JSON.stringify(library)));
await import(pathToFileURL(program));
