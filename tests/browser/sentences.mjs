// Splits texts into sentences, and joins translations of them: node sentences.mjs LINES_JS < cases.json
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { gaps, split } = await import(pathToFileURL(process.argv[2]).href);
const found = JSON.parse(readFileSync(0)).map(({ text, translations, segment }) => {
  const sentences = split(text, segment);
  return { sentences, gaps: gaps(sentences, sentences.map((_, n) => translations[n % translations.length])) };
});
console.log(JSON.stringify(found));
