// The sentences of a line, by the rules of generation/segments/sentences.py, which says why they are as they are: in doubt
// two sentences stay together. A test compares both.

const OPENING = "\"'“”„‘‚«‹»›(\\[{「『《〈（【¿¡\\u2013\\u2014*_"; // in a class of characters
const CLOSING = "\"'”“’‘»›«‹)\\]}」』》〉）】*_";
const ALWAYS = "。！？｡．।॥؟۔։።፧፨။៕"; // they end a sentence wherever they stand
const LONGEST = 40; // characters before a full stop in which its word is looked for
const ABBREVIATIONS = new Set(
  `
mr mrs ms dr prof rev hon st sr jr gen col capt lt sgt gov sen rep pres vs no nos vol fig figs eq eqs ch sec pp ed eds
cf ca approx dept est inc ltd co corp bros ave blvd mt jan feb mar apr jun jul aug sep sept oct nov dec
janv févr avr juil déc ene abr ago dic gen mag giu lug ott set out fev mai jän mär okt dez mrt maj
янв февр фев мар апр авг сент сен окт нояб ноя дек niedz pon wt śr czw pt sob
hr fr frau nr bzw ggf vgl usw evtl bspw str abb bd hrsg mio mrd tel zzgl inkl exkl dipl ing phil med jh
mme mlle mm art av env chap réf éd sra srta dra avda pág núm ud uds sig dott avv sigg dhr mevr mw bijv blz
г гг ул им тов стр рис табл см руб тыс млн млрд пр просп обл inż mgr hab ul pl al tzn np αρ σελ
ee uu kap проф доц акад св ген im św ks
`
    .trim()
    .split(/\s+/),
);

// Letters each of which is a unit (text/units.py): of scripts without spaces between words, and Hangul.
const SINGLE =
  /[\u0e00-\u0fff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u19e0-\u19ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d\u{1b000}-\u{1b16f}\u2e80-\u2fdf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}\u1100-\u11ff\u3130-\u318f\uac00-\ud7af\uffa0-\uffdc]/u;

// White space as Python has it, in a class of characters: not U+FEFF, but U+001C to U+001F and U+0085.
const BREAKING = "\\t-\\r\\x1c- \\x85\\u1680\\u2000-\\u200a\\u2028\\u2029\\u205f\\u3000";
export const WHITE = `${BREAKING}\\u00a0\\u202f`;
const IS_WHITE = new RegExp(`[${WHITE}]`, "u");
export const isWhite = (letter) => IS_WHITE.test(letter);

// Where letters begin and end without the white space around them.
export function trimmed(letters, start = 0, end = letters.length) {
  while (start < end && isWhite(letters[start])) start++;
  while (start < end && isWhite(letters[end - 1])) end--;
  return [start, end];
}

const END = new RegExp(
  `(?:(?<always>[${ALWAYS}]+[!?…]*[${CLOSING}]*)|(?<other>(?<![.!?…])[.!?…]+(?:[\\u00a0\\u202f]?[${CLOSING}]| »(?=[${WHITE}]|$))*(?=[${BREAKING}])))(?<gap>[${WHITE}]*)`,
  "gu",
);
const FIRST = new RegExp(`[${OPENING}${WHITE}]*(.)`, "suy");
const WORD = new RegExp(`[${OPENING}]*([^${WHITE}${OPENING}]*)$`, "u");
const CODED = new RegExp(`^[${WHITE}]*>>[^${WHITE}<>]+<<`, "u");

// Return the places at which a sentence ends, but for the end of the line.
export function sentenceEnds(line) {
  const ends = [];
  if (CODED.test(line)) return ends; // the code of a language holds for the whole line
  for (const found of line.matchAll(END)) {
    const { always, other, gap } = found.groups;
    const end = found.index + found[0].length - gap.length;
    if (line.startsWith(">>", end + gap.length)) continue;
    if (always === undefined ? endsSentence(line, found.index, end, other) : endsQuotation(line, always, end + gap.length)) ends.push(end);
  }
  return ends;
}

// Whether a mark that ends sentences does so here: the sentence around 「...。」 may go on, with と.
function endsQuotation(line, always, next) {
  return ALWAYS.includes(always.at(-1)) || !/[\u3041-\u309f]/.test(line.slice(next, next + 1));
}

// Whether a full stop, or another mark that means other things too, ends a sentence.
function endsSentence(line, start, end, mark) {
  FIRST.lastIndex = end;
  const first = FIRST.exec(line)?.[1];
  if (first === undefined) return true;
  if (/\p{Lowercase}/u.test(first) || !/[\p{L}\p{N}\p{S}\p{P}]/u.test(first)) return false;
  if (!/^\.[^.!?…]*$/.test(mark)) return true;
  const word = WORD.exec(line.slice(Math.max(0, start - LONGEST), start))?.[1] ?? "";
  const [length, isWord] = [[...word].length, /^\p{L}+$/u.test(word)];
  if (/\p{Nd}/u.test(first) && !(isWord && length > 3)) return false; // No. 5, am 3. 4
  if (/^\p{Nd}+$/u.test(word)) return length > 2;
  if (/^\p{Nd}+[.,]\p{Nd}+%?$/u.test(word)) return true;
  const letters = word.replace(/\p{M}/gu, "");
  const isInitial = /^\p{L}$/u.test(letters) && !SINGLE.test(letters);
  return !(isInitial || word.includes(".") || ABBREVIATIONS.has(word.toLowerCase()));
}
