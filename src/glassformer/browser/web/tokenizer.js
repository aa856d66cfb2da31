// Reads the tokenizer.json that the export wrote: from text to ids and back, as the library's own tokenizers do.
//
// The names of `</s>`, `<unk>` and `<pad>` have a space before them there, which no text has (see interop/fast_tokenizer.py).

const UNKNOWN_COSTS = 10; // how far the score of an unknown character lies below the least of the pieces (sentencepiece's)
const MODELS = { Unigram: unigram, BPE: bpe, WordLevel: wordLevel };

export class Tokenizer {
  constructor({ normalizer, pre_tokenizer: apart, model, decoder }) {
    this.names = namesOf(model);
    this.shown = this.names.map((name) => name.replace(/^ | $/g, ""));
    this.ids = new Map(this.shown.map((name, id) => [name, id]));
    this.normalizers = stepsOf(normalizer?.normalizers ?? []);
    const fused = decoder.decoders.findIndex(({ type }) => type === "Fuse");
    this.decoders = { each: stepsOf(decoder.decoders.slice(0, fused)), all: stepsOf(decoder.decoders.slice(fused + 1)) };
    this.splitting = apart && pattern(apart.pattern);
    this.split = MODELS[model.type](model);
  }

  // The ids of a line, without `</s>`.
  encode(line) {
    const text = this.normalizers.reduce((before, step) => step(before), line);
    const parts = this.splitting ? text.split(this.splitting).filter(Boolean) : [text];
    return parts.flatMap((part) => this.split(part));
  }

  // The text of ids, in which `</s>` and `<pad>` are nothing.
  decode(ids) {
    const { each, all } = this.decoders;
    const parts = ids.map((id) => each.reduce((before, step) => step(before), this.names[id]));
    return all.reduce((before, step) => step(before), parts.join(""));
  }

  // The tokens as the vocabulary has them.
  tokens(ids) {
    return ids.map((id) => this.shown[id]);
  }

  idOf(token) {
    return this.ids.get(token);
  }
}

function namesOf({ type, vocab }) {
  if (type === "Unigram") return vocab.map(([name]) => name);
  const names = [];
  for (const [name, id] of Object.entries(vocab)) names[id] = name;
  return names;
}

// The functions of some steps of normalizing or decoding.
const stepsOf = (steps) =>
  steps.map(({ type, pattern: found, content }) => {
    if (type === "NFD") return (text) => text.normalize("NFD");
    if (type !== "Replace") throw new TypeError(`tokenizer.json has a step that this page doesn't know: ${type}`);
    const expression = pattern(found);
    return (text) => text.replace(expression, () => content);
  });

// A regular expression for a pattern, which names the beginning and the end of a text \A and \z.
function pattern({ Regex: regex, String: string }) {
  const source = regex?.replace(/\\[\s\S]/g, (escape) => ({ "\\A": "^", "\\z": "$" })[escape] ?? escape);
  return new RegExp(source ?? string.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "gu");
}

// The splitting with the best sum of scores, and among equals the one whose pieces are longest from the left, as sentencepiece
// finds it: sums are rounded to float32. All of a run of unknown characters is one unknown token.
function unigram({ vocab, unk_id: unknown }) {
  const pieces = new Map(vocab.map(([name, score], id) => [name, { id, score }]));
  const longest = vocab.reduce((most, [name]) => Math.max(most, name.length), 0);
  const least = vocab.reduce((worst, [name, score]) => (name.startsWith(" ") ? worst : Math.min(worst, score)), Infinity) - UNKNOWN_COSTS;
  return (text) => {
    const best = new Array(text.length + 1).fill(null); // of each place: the best way to it, { from, id, sum }
    best[0] = { sum: 0 };
    const reach = (to, from, id, score) => {
      const sum = Math.fround(best[from].sum + score);
      if (!best[to] || sum > best[to].sum) best[to] = { from, id, sum };
    };
    for (let from = 0; from < text.length; ) {
      const next = from + (text.codePointAt(from) > 0xffff ? 2 : 1);
      let isKnown = false;
      for (let to = next; to <= Math.min(text.length, from + longest); to++) {
        const piece = pieces.get(text.slice(from, to));
        if (!piece) continue;
        reach(to, from, piece.id, piece.score);
        if (to === next) isKnown = true;
      }
      if (!isKnown) reach(next, from, unknown, least);
      from = next;
    }
    const ids = [];
    for (let to = text.length; to > 0; to = best[to].from) if (best[to].id !== unknown || ids[0] !== unknown) ids.unshift(best[to].id);
    return ids;
  };
}

// Two neighbours whose union comes first among the merges are joined, the leftmost of these first, until there are none.
function bpe({ vocab, merges, unk_token: unknown }) {
  const ranks = new Map(merges.map(([left, right], rank) => [`${left} ${right}`, rank]));
  return (text) => {
    const parts = [...text];
    const rankOf = (n) => ranks.get(`${parts[n]} ${parts[n + 1]}`) ?? Infinity;
    const ranked = parts.map((_, n) => rankOf(n)); // of each part and the one after it
    for (;;) {
      let at = 0;
      for (let n = 1; n < ranked.length; n++) if (ranked[n] < ranked[at]) at = n;
      if (!(ranked[at] < Infinity)) break;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
      ranked.splice(at + 1, 1);
      ranked[at] = rankOf(at);
      if (at > 0) ranked[at - 1] = rankOf(at - 1);
    }
    const ids = parts.map((part) => vocab[part] ?? vocab[unknown]);
    return ids.filter((id, n) => id !== vocab[unknown] || ids[n - 1] !== id);
  };
}

function wordLevel({ vocab, unk_token: unknown }) {
  const ids = new Map(Object.entries(vocab));
  return (word) => [ids.get(word) ?? ids.get(unknown)];
}
