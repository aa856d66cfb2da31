// Text in, text out: a model with its tokenizers.
import { isWhite } from "../../page/translator/sentences.js";
import { asShown } from "./attention.js";
import { beamSearch, following, greedy, longestTarget, normaliser } from "./search.js";
import { asProbability, wordsOf } from "./words.js";

const STOPPING = new Map([["never", "exact"], [false, "heuristic"], [true, "first"]]); // by Hugging Face's early_stopping
const MOST_SOURCE_TOKENS = 1024;

// A request that can't be answered; `code` says why.
export class Refusal extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export class Translator {
  // `generation` is the model's generation_config.json, whose max_length counts the token that a translation starts from.
  constructor(model, sourceTokenizer, targetTokenizer, generation) {
    Object.assign(this, { model, sourceTokenizer, targetTokenizer });
    this.decode = (ids) => targetTokenizer.decode(ids);
    this.settings = {
      ...{ lengthPenalty: generation.length_penalty ?? 1, penalty: "plain", maxLength: generation.max_length - 1 },
      stopping: STOPPING.get(generation.early_stopping ?? false),
    };
  }

  // Yields the translation up to each token, and returns the finished line.
  async *write(q, { max_length: maxLength }, tick) {
    const source = this.source(q);
    const [ids, gains] = [[], []];
    let text = "";
    for await (const [token, gain] of source.length ? greedy(this.model, source, { limit: this.limit(source, [], maxLength) }) : []) {
      gains.push(gain);
      if (token !== this.model.eos) ids.push(token);
      const written = this.decode(ids);
      if (written.startsWith(text) && !written.endsWith("\ufffd")) text = written; // whole characters
      yield text;
      await tick();
    }
    return this.line(source, [this.hypothesis(ids, gains)]);
  }

  // The best translations of a line that begin with these pieces.
  async translate(q, { beam = 1, n_best: nBest = 1, prefix: pieces = [], length_penalty: lengthPenalty, max_length: maxLength }, tick) {
    const source = this.source(q);
    if (!source.length) return this.line(source, [this.hypothesis([], [])]);
    const prefix = this.idsOf(pieces);
    const settings = { ...this.settings, beam, nBest, prefix, limit: this.limit(source, prefix, maxLength) };
    if (lengthPenalty !== undefined) settings.lengthPenalty = lengthPenalty;
    if (beam > 1) return this.line(source, await beamSearch(this.model, source, settings, tick));
    const [ids, gains] = [[], []];
    for await (const [token, gain] of greedy(this.model, source, settings)) {
      gains.push(gain);
      if (token !== this.model.eos) ids.push(token);
      await tick();
    }
    return this.line(source, [this.hypothesis(ids, gains, settings)]);
  }

  // The likeliest pieces after the first ones of a translation.
  async alternatives(q, { prefix, count }) {
    const ids = this.idsOf(prefix);
    const found = await following(this.model, this.source(q), ids, count);
    return found.map(([token, logProb]) => {
      const [piece] = this.targetTokenizer.tokens([token]);
      return { piece, probability: asProbability(logProb), text: this.decode([...ids, token]) };
    });
  }

  // Where the model looked as it wrote these pieces, as a page shows it.
  async attention(q, pieces) {
    const source = this.source(q);
    const layers = await this.model.attention(source, this.idsOf(pieces));
    return asShown(layers, this.sourceTokenizer.tokens(source), pieces);
  }

  // The ids of a line with `</s>`; none of an empty one, or of white space.
  source(q) {
    const ids = [...q].every(isWhite) ? [] : this.sourceTokenizer.encode(q);
    if (ids.length >= MOST_SOURCE_TOKENS) throw new Refusal("too_long", `the line has ${ids.length} tokens`);
    return ids.length ? [...ids, this.model.eos] : [];
  }

  limit(source, prefix, maxLength = Infinity) {
    return longestTarget(source, prefix, Math.min(this.settings.maxLength, maxLength));
  }

  idsOf(pieces) {
    return pieces.map((piece) => this.targetTokenizer.idOf(piece));
  }

  hypothesis(ids, gains, settings = this.settings) {
    const sum = gains.reduce((a, b) => a + b, 0);
    return { ids, gains, sum, score: gains.length ? sum / normaliser(gains.length, settings) : 0 };
  }

  // What a page shows of the hypotheses for a line.
  line(source, hypotheses) {
    const translations = hypotheses.map(({ ids, gains, sum, score }) => {
      const tokens = this.targetTokenizer.tokens([...ids, this.model.eos].slice(0, gains.length));
      const pieces = tokens.map((piece, n) => ({ piece, probability: asProbability(gains[n]) }));
      return { text: this.decode(ids), ids, score, probability: asProbability(sum), pieces, words: wordsOf(ids, gains, this.decode) };
    });
    return { source_pieces: this.sourceTokenizer.tokens(source), translations };
  }
}
