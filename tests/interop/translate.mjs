// Translates with transformers.js, from local files only. Standard input: {folder, target, lines, length}.
import { readFileSync } from "node:fs";
import { basename, dirname } from "node:path";
import { pathToFileURL } from "node:url";

const packages = process.argv[2];
const { AutoModelForSeq2SeqLM, AutoTokenizer, env } = await import(
  pathToFileURL(`${packages}/@huggingface/transformers/dist/transformers.node.mjs`)
);
const { folder, target, lines, length } = JSON.parse(readFileSync(0, "utf8"));
env.allowRemoteModels = false;
env.localModelPath = dirname(folder);
env.useFSCache = false;
const name = basename(folder);
const tokenizer = await AutoTokenizer.from_pretrained(name);
const reader = target ? await AutoTokenizer.from_pretrained(`${name}/${target}`) : tokenizer;
const model = await AutoModelForSeq2SeqLM.from_pretrained(name, {
  dtype: "fp32",
  session_options: { intraOpNumThreads: 1, interOpNumThreads: 1 },
});
const answers = [];
for (const line of lines) {
  const inputs = await tokenizer(line);
  const found = (await model.generate({ ...inputs, max_new_tokens: length, num_beams: 1 })).tolist()[0].map(Number);
  answers.push({ source: inputs.input_ids.tolist()[0].map(Number), found, text: reader.decode(found, { skip_special_tokens: true }) });
}
process.stdout.write(JSON.stringify(answers));
