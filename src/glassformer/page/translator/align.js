// Where the pieces that the model read stand in the text that was typed.

const SPACED = /[\s\u2581]/gu; // SentencePiece writes U+2581 for a space
const UNWRITTEN = /^(<unk>|⁇|<0x[0-9A-F]{2}>|<s>|<pad>)$/; // pieces that don't show what they stand for
const FARTHEST = 40; // characters that pieces may leave out, unless one of them stands for any: what is found later is another word
export const UNSPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}\p{Script=Tibetan}]/u;
const CHARACTER = /\P{M}\p{M}*|\p{M}+/gu; // with its marks, for browsers that can't tell graphemes
const graphemes = Intl.Segmenter
  ? new Intl.Segmenter(undefined, { granularity: "grapheme" })
  : { segment: (text) => Array.from(text.matchAll(CHARACTER), ({ 0: segment, index }) => ({ segment, index })) };
const plain = (text) => text.normalize("NFKD").toLowerCase().replace(SPACED, "").replace(/ς/g, "σ");

// [start, end] of each piece in the text, or null of those that aren't found there, such as the last one, </s>.
// Both are compared without spaces and case, in the form NFKD: SentencePiece may have changed the text, or read the parts of
// characters. The last letter of a Greek word is lower-cased in a way of its own.
export function placesOf(pieces, text) {
  const starts = []; // of each plain character: where the one that it stands for begins and ends in the text
  let written = "";
  for (const { segment, index } of graphemes.segment(text)) {
    const letters = plain(segment);
    for (let n = 0; n < letters.length; n++) starts.push([index, index + segment.length]);
    written += letters;
  }
  const found = pieces.map(() => null);
  const place = (from, to) => (to > from ? [starts[from][0], starts[to - 1][1]] : null);
  let [at, unwritten] = [0, []];
  const bridge = (to) => {
    for (const n of unwritten) found[n] = place(at, to); // together they stand for what lies between
    unwritten = [];
  };
  pieces.forEach((piece, n) => {
    if (piece === "</s>" || plain(piece) === "") return;
    const from = UNWRITTEN.test(piece) ? -1 : written.indexOf(plain(piece), at);
    const isLost = from > at + FARTHEST && !unwritten.some((other) => UNWRITTEN.test(pieces[other]));
    if (from < 0 || isLost) return unwritten.push(n);
    bridge(from);
    at = from + plain(piece).length;
    found[n] = place(from, at);
  });
  bridge(written.length);
  return found;
}

// Words of the text: { text, start, end, first, last }, first and last of their pieces (last is the one after). Pieces that
// stand nowhere belong to the word after them.
export function wordsOf(pieces, text) {
  const words = [];
  placesOf(pieces, text).forEach((place, n) => {
    if (!place) return;
    const [start, end] = place;
    const word = words.at(-1);
    const isSame = word && start < word.end;
    if (isSame || (word && start === word.end && joined(text.slice(0, start), text.slice(start, end)))) {
      word.end = Math.max(word.end, end);
      word.last = n + 1;
    } else words.push({ start, end, first: word?.last ?? 0, last: n + 1 });
  });
  return words.map((word) => ({ ...word, text: text.slice(word.start, word.end) }));
}

// Whether letters go on as the same word. Scripts without spaces between words have none.
function joined(before, after) {
  const [left, right] = [[...before].at(-1), [...after][0]];
  const isLetter = (c) => /[\p{L}\p{M}\p{N}]/u.test(c) && !UNSPACED.test(c);
  return isLetter(left) && isLetter(right);
}
