// Translates a text sentence after sentence, and keeps what it has: only sentences that are new are asked for.
import { ApiError } from "./errors.js";
import { gaps, places, split } from "./lines.js";

const KEPT = 500; // translations of sentences
const WAITS = ["unauthorized", "forbidden", "too_many", "busy", "starting"]; // typing on doesn't help with these
const OF_A_SENTENCE = ["invalid", "too_long", "too_large", "deadline"]; // another one may do

export class Writer {
  // `changed` is called whenever something else is to be shown.
  constructor(api, changed) {
    this.api = api;
    this.changed = changed;
    this.sentences = []; // { before, text, after, start, line, key, stale }
    this.results = new Map(); // by key
    this.failures = new Map();
    this.draft = null; // { key, text } of the sentence that is being written
    this.error = null;
  }

  // Translate another text, or the same with another run. A sentence that is under way and still there goes on.
  write(text, run) {
    const older = this.sentences;
    const newer = split(text, run.segment);
    const from = places(older, newer);
    this.sentences = newer.map((one, n) => ({ ...one, key: keyOf(run, one.text), stale: this.shown(older[from[n]]) }));
    this.run = run;
    const present = new Set(this.sentences.map(({ key }) => key));
    for (const key of this.failures.keys()) if (!present.has(key)) this.failures.delete(key); // typed again, it is tried again
    if (this.error && !WAITS.includes(this.error.code)) this.error = null;
    if (this.aborting && !this.waiting().some(({ key }) => key === this.aborting.key)) this.aborting.controller.abort();
    this.changed();
    this.go();
  }

  // Try again what failed.
  retry() {
    this.error = null;
    this.failures.clear();
    this.changed();
    this.go();
  }

  // Sentences that have no translation yet.
  waiting() {
    return this.sentences.filter(({ text, key }) => text && !this.results.has(key) && !this.failures.has(key));
  }

  // The text that stands for a sentence: its translation, what is written of it, or what stood there before.
  shown(sentence) {
    if (!sentence?.text) return "";
    if (this.results.has(sentence.key)) return this.results.get(sentence.key).text;
    return (this.isDrafted(sentence) && this.draft.text) || sentence.stale;
  }

  isDrafted(sentence) {
    return this.draft?.key === sentence.key;
  }

  // The white space after each sentence's translation, within its line.
  get gaps() {
    return gaps(this.sentences, this.sentences.map((one) => this.shown(one)));
  }

  async go() {
    if (this.isGoing) return;
    this.isGoing = true;
    try {
      for (let next; !this.error && (next = this.waiting()[0]); ) await this.translate(next, this.run);
    } finally {
      this.isGoing = false;
    }
  }

  async translate({ text, key }, run) {
    const controller = new AbortController();
    this.aborting = { key, controller };
    this.draft = { key, text: "" };
    try {
      for await (const [name, data] of this.api.stream({ q: text, run: run.run }, controller.signal)) {
        if (name === "piece") this.draft.text = data.text;
        if (name === "done") this.keep(key, resultOf(text, run, data.lines[0]));
        this.changed();
      }
      if (!this.results.has(key)) throw new ApiError("offline", "the answer has no end");
    } catch (error) {
      if (controller.signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      if (OF_A_SENTENCE.includes(error.code)) this.failures.set(key, error);
      else this.error = error;
    } finally {
      this.aborting = this.draft = null;
      this.changed();
    }
  }

  keep(key, result) {
    this.results.delete(key); // so that the newest is last
    this.results.set(key, result);
    if (this.results.size <= Math.max(KEPT, 2 * this.sentences.length)) return;
    const present = new Set(this.sentences.map((one) => one.key));
    this.results.delete([...this.results.keys()].find((old) => !present.has(old)));
  }

  // Put another translation in a sentence's place.
  replace(key, result) {
    this.keep(key, { ...result, previous: this.results.get(key) }); // which may have one too
    this.changed();
  }

  // Bring back the one before.
  undo(key) {
    this.keep(key, this.results.get(key).previous);
    this.changed();
  }

  get text() {
    const after = this.gaps;
    const lines = [];
    this.sentences.forEach((one, n) => (lines[one.line] = (lines[one.line] ?? "") + one.before + this.shown(one) + after[n]));
    return lines.join("\n");
  }
}

const keyOf = (run, text) => `${run.run}\n${text}`;

// A translation of a sentence, with what was asked.
export function resultOf(q, run, { source_pieces, translations }, n = 0) {
  return { ...translations[n], q, run: run.run, source_pieces };
}
