// The words of a translation, and how likely each is, as serve/workers/words.py finds them.

import { UNSPACED } from "../../page/translator/align.js";
import { isWhite, trimmed } from "../../page/translator/sentences.js";

const isPunctuation = (letter) => /\p{P}/u.test(letter);
export const asProbability = (logProb) => Math.min(1, Math.exp(logProb));

// { text, start, end, first, last, probability } of each word: places in the text are counted in characters, first and last
// are of its tokens (last is the one after). A word ends where the text has a space, and before tokens that are the
// punctuation after it. Where text is written without spaces each token is a word.
export function wordsOf(ids, gains, decode) {
  const letters = [...decode(ids)];
  const words = [];
  let [place, first] = [0, 0];
  for (let n = 0; n < ids.length; n++) {
    const start = place;
    place = Math.max(place, common([...decode(ids.slice(0, n + 1))], letters));
    if (start === place) continue; // a space, or the first bytes of a character: part of what follows
    if (words.length && !beginsWord(letters, start)) Object.assign(words.at(-1), { end: place, last: n + 1 });
    else words.push({ start, end: place, first, last: n + 1 });
    first = n + 1;
  }
  return words.map((word) => described(word, letters, gains));
}

function common(some, others) {
  let n = 0;
  while (n < some.length && n < others.length && some[n] === others[n]) n++;
  return n;
}

// Whether a word begins with the character at `start`, where a token begins.
function beginsWord(letters, start) {
  const [before, after] = [letters[start - 1], letters[start]];
  if ([before, after].some((letter) => isWhite(letter) || UNSPACED.test(letter))) return true;
  const rest = letters.slice(start);
  const end = rest.findIndex(isWhite);
  return !isPunctuation(before) && rest.slice(0, end < 0 ? rest.length : end).every(isPunctuation);
}

function described({ first, last, ...place }, letters, gains) {
  const [start, end] = trimmed(letters, place.start, place.end);
  const logProb = gains.slice(first, last).reduce((a, b) => a + b, 0);
  return { start, end, first, last, text: letters.slice(start, end).join(""), probability: asProbability(logProb) };
}
