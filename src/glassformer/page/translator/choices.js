// Lists to choose from: other words in the place of one, and other translations of a sentence.
import { make, percent } from "../web/drawing.js";
import { roving, stopAt } from "./keys.js";
import { resultOf } from "./writer.js";

const COUNT = 8; // words to choose from
const BEAM = 5;
const CHOICE = "button:not(:disabled)";

export class Choices {
  constructor(app) {
    this.app = app;
    this.title = make("h2");
    this.list = make("ol", { class: "choices" });
    this.says = make("p", { class: "says" });
    this.element = make("section", { class: "beside", "aria-label": app.words.alternatives }, this.title, this.list, this.says);
    roving(this.list, CHOICE);
  }

  // Offer other words at a place of a translation. First come the pieces, then, with one more request, the words that they
  // begin, how probable these are, and how the sentence goes on after them.
  async showWords(result, first) {
    const { api, words } = this.app;
    const mine = this.begin(words.alternatives, words.alternativesHint);
    const { q, run } = result;
    const prefix = result.pieces.slice(0, first).map(({ piece }) => piece);
    const offered = await this.wanted(mine, api.alternatives({ q, run, prefix, count: COUNT }));
    if (!offered) return;
    const before = first === 0 ? "" : textBefore(result, first);
    const current = result.words.find((word) => word.first === first);
    const rows = offered.alternatives.map(({ piece, probability, text }) => {
      const isCurrent = piece === result.pieces[first]?.piece;
      const word = isCurrent && current ? current : { text: text.slice(before.length).trim() || words.end, probability };
      return { piece, probability: word.probability, isCurrent, prefix: [...prefix, piece], upTo: text, parts: [[word.text, true]] };
    });
    rows.sort((a, b) => b.isCurrent - a.isCurrent); // the sort is stable
    this.fill(rows);
    const room = Math.min(api.most("max_lines", COUNT), Math.floor(api.most("max_chars", Infinity) / q.length));
    const open = rows.filter(({ piece, isCurrent }) => piece !== "</s>" && !isCurrent).slice(0, room);
    if (!open.length) return;
    const prefixes = open.map((row) => row.prefix);
    const answer = await this.wanted(mine, api.translate({ q: open.map(() => q), run, beam: 1, prefixes, scores: true, confidence: true }));
    if (!answer) return;
    open.forEach((row, n) => this.complete(row, resultOf(q, this.app.run, { ...answer.lines[n], source_pieces: result.source_pieces }), first));
    const seen = new Set();
    rows.sort((a, b) => b.isCurrent - a.isCurrent || b.probability - a.probability);
    this.fill(rows.filter(({ parts: [[word]] }) => !seen.has(word) && seen.add(word))); // other pieces may make the same word
  }

  // The word that a piece begins, and the text after it.
  complete(row, result, first) {
    const word = result.words.find((one) => one.first <= first && first < one.last);
    row.result = result;
    if (word?.first === first) {
      row.parts = [[word.text, true], [[...result.text].slice(word.end).join("")]];
      row.probability = word.probability;
    } else if (result.text.startsWith(row.upTo)) row.parts.push([result.text.slice(row.upTo.length)]);
  }

  // Offer other translations of a sentence, as a beam search finds them.
  async showLines(result) {
    const { api, words, run } = this.app;
    const mine = this.begin(words.othersTitle, words.othersHint);
    const { q } = result;
    const beam = api.most("max_beam", BEAM);
    const asked = { q, run: result.run, beam, n_best: api.most("max_n_best", beam), scores: true, confidence: true };
    const answer = await this.wanted(mine, api.translate(asked));
    if (!answer) return;
    const { lines } = answer;
    const found = lines[0].translations.map((_, n) => resultOf(q, run, lines[0], n));
    this.fill(found.map((one) => ({ result: one, parts: news(one, result), probability: one.probability, isCurrent: one.text === result.text })));
  }

  begin(title, says) {
    this.title.textContent = title;
    this.says.textContent = says;
    this.element.setAttribute("aria-label", title);
    this.list.classList.toggle("ahead", title === this.app.words.alternatives);
    this.element.setAttribute("aria-busy", "true");
    return (this.newest = Symbol("request"));
  }

  // An answer, or its error; neither where it is wanted no more.
  async wanted(mine, request) {
    try {
      const answer = await request;
      return mine === this.newest ? answer : null;
    } catch (error) {
      if (mine !== this.newest) return null;
      this.element.setAttribute("aria-busy", "false");
      if (this.filled !== mine) this.list.replaceChildren(); // those of what was looked at before
      throw error;
    }
  }

  // What was asked for is wanted no more.
  leave() {
    this.newest = null;
    this.element.setAttribute("aria-busy", "false");
    this.list.replaceChildren();
  }

  fill(rows) {
    const focused = [...this.list.children].findIndex((row) => row.contains(document.activeElement));
    this.list.replaceChildren(...rows.map((row) => this.row(row)));
    this.filled = this.newest;
    this.element.setAttribute("aria-busy", "false");
    const buttons = [...this.list.querySelectorAll(CHOICE)];
    stopAt(this.list, CHOICE, buttons.find((button) => button.getAttribute("aria-current")));
    if (focused >= 0) buttons[Math.min(focused, buttons.length - 1)]?.focus();
  }

  // Nothing can follow </s>: its row only says how likely the end is.
  row({ parts, ...row }) {
    const isEnd = row.piece === "</s>" && !row.isCurrent;
    const bar = make("span", { class: "share", "aria-hidden": "true" });
    bar.style.width = `${Math.max(1, Math.round(100 * row.probability))}%`;
    const button = make(
      "button",
      { type: "button", title: parts.map(([text]) => text).join(""), "aria-current": row.isCurrent ? "true" : null, disabled: isEnd, onclick: () => this.filled === this.newest && this.app.take(row) },
      make("span", { class: "choice", dir: "auto" }, ...parts.map(([text, isNew]) => make(isNew ? "b" : "span", {}, text))),
      make("span", { class: "percent" }, percent(row.probability)),
      bar,
    );
    return make("li", {}, button);
  }
}

// The text of the pieces before one, as far as words tell it.
function textBefore({ text, words }, first) {
  const before = words.filter(({ last }) => last <= first).at(-1);
  return before ? [...text].slice(0, before.end).join("") : "";
}

// A translation in parts [text, whether it is new]: words that another translation has not.
function news({ text, words }, other) {
  const known = new Set(other.words.map((word) => word.text));
  const letters = [...text];
  const parts = words.flatMap((word, n) => [[letters.slice(words[n - 1]?.end ?? 0, word.start).join("")], [word.text, !known.has(word.text)]]);
  return [...parts, [letters.slice(words.at(-1)?.end ?? 0).join("")]];
}
