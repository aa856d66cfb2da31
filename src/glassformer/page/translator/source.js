// The text that is typed. Under it lies the same text as words, which take colours.
import { colour, ink, make, percent, reveal, shade } from "../web/drawing.js";

const CARET = /^(Arrow|Home|End|Page)/; // keys that move the caret

export class Source {
  constructor(app) {
    const { words } = app;
    this.app = app;
    this.under = make("div", { class: "under", "aria-hidden": "true" });
    this.field = make("textarea", {
      id: "source",
      "aria-label": words.sourceLabel,
      placeholder: words.placeholder,
      rows: 1,
      dir: "auto",
      autocapitalize: "off",
      oninput: (event) => this.changed(event.isComposing),
      oncompositionend: () => this.changed(false),
      onclick: () => this.app.pointed(this.field.selectionStart),
      onkeyup: ({ key }) => CARET.test(key) && this.app.pointed(this.field.selectionStart),
    });
    this.clearing = make("button", { type: "button", class: "clear", "aria-label": words.clear, title: words.clear, onclick: () => this.clear() }, "×");
    this.paper = make("div", { class: "paper" }, this.under, this.field);
    this.element = make("section", { class: "pane", "aria-label": words.sourceLabel }, this.paper, this.clearing);
    this.light(null);
  }

  get text() {
    return this.field.value;
  }

  set text(text) {
    this.field.value = text;
    this.light(null);
  }

  // What an input method is still composing is no text yet.
  changed(isComposing) {
    this.light(null);
    if (!isComposing) this.app.typed();
  }

  clear() {
    this.text = "";
    this.app.typed();
    this.field.focus();
  }

  // The number of the sentence that the caret is in.
  get sentence() {
    const caret = this.field.selectionStart;
    return Math.max(0, this.app.writer.sentences.findLastIndex(({ start, before }) => start - before.length <= caret));
  }

  // Where the words of a sentence begin.
  startOf(sentence) {
    return this.app.writer.sentences[sentence]?.start ?? this.text.length;
  }

  // Colour words: { sentence, words: [{ start, end, weight, chosen }] }, places within the sentence of this number; or none.
  light(lit) {
    const { text } = this;
    this.clearing.hidden = !text;
    this.strongest = null;
    this.element.classList.toggle("lit", lit !== null);
    if (!lit) return this.under.replaceChildren(text + "\u200b"); // so that a last empty line has a height
    const first = this.startOf(lit.sentence);
    const most = lit.words.reduce((a, { weight }) => Math.max(a, weight ?? 0), 0);
    const parts = [];
    let at = 0;
    for (const { start, end, weight, chosen } of lit.words) {
      const part = make("span", { class: chosen ? "heat chosen" : "heat" }, text.slice(first + start, first + end));
      if (weight !== undefined) {
        part.style.background = colour(this.app.palette, shade(weight, most));
        part.style.color = ink(this.app.palette, shade(weight, most));
        part.dataset.weight = percent(weight);
      }
      parts.push(text.slice(at, first + start), part);
      at = first + end;
    }
    this.under.replaceChildren(...parts, text.slice(at) + "\u200b");
    this.strongest = this.under.children[lit.words.findIndex(({ weight, chosen }) => chosen || weight === most)] ?? null;
  }

  // Scroll to the word that is looked at most.
  reveal() {
    if (this.strongest) reveal(this.paper, this.strongest);
  }
}
