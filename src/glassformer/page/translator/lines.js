// A text as the sentences of its lines, and what of an older text each sentence takes the place of.
import { WHITE, sentenceEnds, trimmed } from "./sentences.js";

// Return the sentences of a text, of an empty line one without words: each with the white space around it, the place where
// its words begin in the text, and the number of its line.
//
// `segment` is "line" for a run that reads words or symbols: then each line is one.
export function split(text, segment) {
  const sentences = [];
  let at = 0;
  text.split(/(\r\n|\n|\r)/).forEach((row, n) => {
    const ends = segment === "line" ? [] : sentenceEnds(row);
    if (n % 2 === 0) sentences.push(...inLine(row, ends).map((one) => ({ ...one, start: at + one.start, line: n / 2 })));
    at += row.length;
  });
  return sentences;
}

function inLine(row, ends) {
  const found = [];
  let [from, gap] = [0, ""];
  for (const end of new Set([...ends, row.length])) {
    const piece = row.slice(from, end);
    const [begins, last] = trimmed(piece);
    const text = piece.slice(begins, last);
    gap += piece.slice(0, begins);
    if (text) {
      if (found.length) found.at(-1).after = gap;
      found.push({ before: found.length ? "" : gap, text, after: "", start: from + begins });
      gap = piece.slice(begins + text.length);
    }
    from = end;
  }
  if (!found.length) return [{ before: gap, text: "", after: "", start: gap.length }];
  found.at(-1).after = gap;
  return found;
}

// Return the white space after each of these translations of sentences, once they stand in their lines: between sentences
// of Chinese or Japanese a single space is left out, and between others one is put where there was nothing.
export function gaps(sentences, texts) {
  const lines = [];
  sentences.forEach(({ line }, n) => (lines[line] = (lines[line] ?? "") + texts[n]));
  const dense = lines.map(isDense);
  return sentences.map(({ after, line }, n) => {
    if (sentences[n + 1]?.line !== line) return after;
    if (dense[line]) return after === " " ? "" : after;
    return after || (texts[n] && texts[n + 1] ? " " : "");
  });
}

const DENSE = "\\u3000-\\u30ff\\u31f0-\\u31ff\\u3400-\\u9fff\\uf900-\\ufaff\\uff00-\\uff65\\u{20000}-\\u{3ffff}";
const [LETTERS, OTHERS, APART] = [`[${DENSE}]`, `[^${WHITE}${DENSE}]+`, `[${DENSE}] (?=[${DENSE}])`].map((one) => new RegExp(one, "gu"));

// Whether a text is Chinese or Japanese, by the rule of text/joining.py.
export function isDense(text) {
  const [letters, others, apart] = [LETTERS, OTHERS, APART].map((one) => (text.match(one) ?? []).length);
  return letters > others && 4 * apart < letters;
}

// The number of the older sentence in whose place each one stands, or -1. Those that are equal at both ends are the same,
// those between take each other's places in order.
export function places(older, newer) {
  const shorter = Math.min(older.length, newer.length);
  let [head, tail] = [0, 0];
  while (head < shorter && older[head].text === newer[head].text) head++;
  while (tail < shorter - head && older.at(-1 - tail).text === newer.at(-1 - tail).text) tail++;
  return newer.map((_, n) => {
    if (n < head) return n;
    if (n >= newer.length - tail) return n - newer.length + older.length;
    return n < older.length - tail ? n : -1;
  });
}
