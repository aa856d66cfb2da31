// A page that translates: holds what is typed, chosen and known, and the parts that show it.
//
// Where translations come from is its `api`: serve/web/api.js asks a server, browser/web/local.js a worker of the browser.
import { PALETTES, make } from "../web/drawing.js";
import { Bar } from "./bar.js";
import { Choices } from "./choices.js";
import { ApiError } from "./errors.js";
import { Glass } from "./glass.js";
import { Notice } from "./notice.js";
import { recall, remember } from "./settings.js";
import { Source } from "./source.js";
import { Target } from "./target.js";
import { Writer, resultOf } from "./writer.js";

const SETTLED = 600; // milliseconds before a finished translation is read out

export class App {
  // `languages` are what the page says in each language of the interface, by code. `pause`: milliseconds without typing
  // before a translation begins.
  constructor(root, api, languages, pause) {
    Object.assign(this, { root, api, languages, pause });
    this.writer = new Writer(this.api, () => this.draw());
    this.runs = [];
    // { key, sentence, word, token } of the translation's word that is looked at. Word -1 is the end, </s>, if it has a token,
    // and else none: other translations are offered.
    this.chosen = null;
    this.words = languages[recall("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en")] ?? languages.en;
    this.followTheme();
    this.build("");
    root.addEventListener("keydown", (event) => event.key === "Escape" && !event.isComposing && this.chosen && this.close(document.activeElement !== this.source.field));
    window.addEventListener("online", () => (this.trouble ?? this.writer.error)?.code === "offline" && this.retry());
    this.load();
  }

  // -- theme and language --

  get theme() {
    return this.root.dataset.theme;
  }

  get palette() {
    return PALETTES[this.theme];
  }

  // The system's theme, until the button is used.
  followTheme() {
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const follow = () => this.setTheme(recall("theme") ?? (dark.matches ? "dark" : "light"));
    dark.addEventListener("change", follow);
    follow();
  }

  setTheme(theme) {
    this.root.dataset.theme = document.documentElement.dataset.theme = theme === "dark" ? "dark" : "light";
    if (!this.themeButton) return;
    this.themeButton.textContent = this.theme === "dark" ? this.words.toLight : this.words.toDark;
    this.glass.redraw();
  }

  toggleTheme() {
    const theme = this.theme === "dark" ? "light" : "dark";
    remember("theme", theme);
    this.setTheme(theme);
  }

  get otherWords() {
    return this.words.code === "en" ? this.languages.zh : this.languages.en;
  }

  toggleLanguage() {
    this.words = this.otherWords;
    remember("language", this.words.code);
    const chosen = this.chosen;
    this.build(this.source.text);
    this.languageButton.focus();
    if (chosen) this.again(chosen);
  }

  // Make all parts, in the language of the interface.
  build(text) {
    const { words } = this;
    this.notice?.destroy();
    this.glass?.destroy();
    document.documentElement.lang = words.code;
    document.title = `glassformer · ${words.title}`;
    const other = this.otherWords;
    this.languageButton = make("button", { type: "button", lang: other.code, onclick: () => this.toggleLanguage() }, other.name);
    this.themeButton = make("button", { type: "button", title: words.themeHint, onclick: () => this.toggleTheme() });
    this.bar = new Bar(this);
    this.source = new Source(this);
    this.target = new Target(this);
    this.notice = new Notice(this);
    this.glass = new Glass(this);
    this.choices = new Choices(this);
    this.status = make("p", { class: "unseen", role: "status" });
    this.facts = make("p", { class: "says" });
    const close = make("button", { type: "button", class: "close", "aria-label": words.close, title: words.close, onclick: () => this.close() }, "×");
    const figures = make("section", { class: "looked", "aria-label": words.looked }, this.glass.readout, make("div", { class: "heads" }, this.glass.root, this.glass.overview.element));
    this.figures = figures;
    this.panel = make("div", { class: "panel", hidden: true }, this.choices.element, figures, close);
    this.chosen = null;
    this.root.classList.remove("looking");
    this.source.text = text;
    this.source.field.lang = this.run?.source ?? "";
    this.root.replaceChildren(
      make("header", {}, make("h1", {}, "glassformer"), make("div", { class: "tools" }, this.languageButton, this.themeButton)),
      this.bar.element,
      make("div", { class: "panes" }, this.source.element, this.target.element),
      this.notice.element,
      this.panel,
      make("footer", {}, this.facts, ...this.links()),
      this.status,
    );
    this.setTheme(this.theme);
    this.bar.draw();
    this.draw();
  }

  // What the foot of the page leads to.
  links() {
    return [];
  }

  // -- runs --

  async load() {
    await this.attempt(async () => {
      const runs = (this.runs = await this.api.runs());
      if (!runs.length) return (this.status.textContent = this.facts.textContent = this.words.noRuns);
      this.use(runs[0]);
      this.source.field.focus();
    });
  }

  // Ask again for the figures of a run that was still being loaded.
  async reload() {
    const asked = this.run;
    if (this.reloading === asked) return;
    this.reloading = asked;
    await this.attempt(async () => {
      this.runs = await this.api.runs();
      if (this.run !== asked) return;
      this.run = this.runs.find(({ run }) => run === asked.run) ?? asked;
      this.facts.textContent = this.words.facts(this.run);
    });
  }

  use(run) {
    this.run = run;
    this.source.field.lang = run.source;
    this.bar.draw();
    this.write();
  }

  // Translate back: what was the translation becomes the text, once there is one of all of it.
  swap(run) {
    this.write(); // what was typed just now counts, too
    const { text, sentences, results } = this.writer;
    if (text.trim() && sentences.every((one) => !one.text || results.has(one.key))) this.source.text = text;
    this.use(run);
  }

  // -- writing --

  typed() {
    clearTimeout(this.pausing);
    this.pausing = setTimeout(() => this.write(), this.pause);
  }

  write() {
    clearTimeout(this.pausing);
    if (!this.run) return;
    this.trouble = null; // that of what was looked at
    this.writer.write(this.source.text, this.run);
  }

  // Show what the writer has.
  draw() {
    this.target.draw();
    this.notice.show(this.trouble ?? this.writer.error);
    this.facts.textContent = this.run ? this.words.facts(this.run) : "";
    if (this.run?.ready === false && this.writer.sentences.some(({ key }) => this.writer.results.has(key))) this.reload();
    this.follow();
    clearTimeout(this.settling);
    if (!this.writer.waiting().length) this.settling = setTimeout(() => this.tell(this.writer.text.trim()), SETTLED);
  }

  // Say it to those who don't see the page.
  tell(words) {
    if (this.status.textContent !== words) this.status.textContent = words;
  }

  // Do what asks the server; where that fails, show why.
  async attempt(act) {
    try {
      await act();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble = error;
      this.draw();
    }
  }

  retry() {
    const { trouble, chosen } = this;
    this.trouble = null;
    this.notice.show(null);
    if (!this.runs.length) return this.load();
    this.writer.retry();
    if (trouble && chosen) this.again(chosen);
  }

  async copy() {
    const { words, writer, target } = this;
    const done = await copied(writer.text);
    this.tell(done ? words.copied : words.copyFailed);
    target.buttons.copy.textContent = done ? words.copied : words.copyFailed;
    setTimeout(() => (target.buttons.copy.textContent = words.copy), 2000);
  }

  // -- looking --

  // The translation that is looked at.
  get result() {
    return this.writer.results.get(this.chosen.key);
  }

  // Whether the maps are of the translation that is looked at. Those of another stay while the server is asked for its own.
  get isMapped() {
    return Boolean(this.chosen) && !this.figures.hidden && this.glass.result === this.result;
  }

  // The sentence whose translation was taken from others: that which is looked at, else the last; -1: none.
  get undoable() {
    const { sentences, results } = this.writer;
    const isChanged = (sentence) => results.get(sentences[sentence]?.key)?.previous !== undefined;
    return isChanged(this.chosen?.sentence) ? this.chosen.sentence : sentences.findLastIndex((_, sentence) => isChanged(sentence));
  }

  // Look at a word of the translation.
  choose(sentence, word) {
    const { key } = this.writer.sentences[sentence];
    const { first, last } = this.writer.results.get(key).words[word];
    return this.look({ sentence, word, token: first }, last);
  }

  // Look again at what was looked at, or offer other translations where these were offered.
  again({ sentence, word, token }) {
    if (word >= 0) return this.choose(sentence, word);
    return token === undefined ? this.showOthers(sentence) : this.look({ sentence, word, token }, token + 1);
  }

  // Look at the tokens of a translation from this one up to `last`.
  look({ sentence, word, token }, last) {
    const { key } = this.writer.sentences[sentence];
    const result = this.writer.results.get(key);
    this.chosen = { key, sentence, word, token };
    this.trouble = null;
    this.open(true);
    this.target.mark(sentence, word);
    this.target.reveal();
    return this.attempt(() => Promise.all([this.glass.show(result, token, last), this.choices.showWords(result, token)]));
  }

  // Somebody pointed at a place of the text: while a translation is looked at, show which of its words look there.
  pointed(place) {
    if (!this.isMapped) return;
    const at = place - this.source.startOf(this.chosen.sentence);
    const words = this.glass.sourceWords;
    const word = words.find(({ start, end }) => start <= at && at < end) ?? words.find(({ end }) => at === end);
    const { side, token } = this.glass.state;
    if (word && !(side === "to" && token === word.first)) this.glass.choose({ side: "to", token: word.first });
  }

  // Open the panel, with the maps of a word or without.
  open(hasFigures) {
    this.panel.hidden = false;
    this.figures.hidden = !hasFigures;
    this.root.classList.add("looking");
  }

  // The glass chose another word, of either text.
  looked() {
    const { side, token } = this.glass.state;
    if (!this.isMapped || side !== "from" || this.glass.word === this.chosen.word) return;
    Object.assign(this.chosen, { word: this.glass.word, token });
    this.attempt(() => this.choices.showWords(this.result, token));
  }

  // Scroll to what is chosen and to what looks there most.
  reveal() {
    if (!this.isMapped) return;
    this.source.reveal();
    this.target.reveal();
  }

  lightSource(words, weights) {
    if (!this.isMapped) return;
    const { sentence } = this.chosen;
    this.source.light({ sentence, words: words.map(({ start, end }, n) => ({ start, end, weight: weights[n] })) });
    this.target.mark(sentence, this.glass.word);
  }

  lightTarget(words, chosen, weights) {
    if (!this.isMapped) return;
    const { sentence } = this.chosen;
    this.source.light({ sentence, words: words.filter((_, n) => n === chosen).map(({ start, end }) => ({ start, end, chosen: true })) });
    this.target.mark(sentence, -1, weights);
  }

  // What is looked at may have moved to another sentence, or be there no more.
  follow() {
    if (!this.chosen) return;
    const { sentences, results } = this.writer;
    const { key, sentence } = this.chosen;
    const now = sentences[sentence]?.key === key ? sentence : sentences.findIndex((one) => one.key === key);
    if (now < 0 || !results.has(key)) return this.close(false);
    this.chosen.sentence = now;
    if (this.isMapped) this.glass.light();
  }

  close(focus = true) {
    const { sentence, word } = this.chosen;
    this.chosen = this.trouble = null;
    this.notice.show(this.writer.error);
    this.panel.hidden = true;
    this.root.classList.remove("looking");
    this.choices.leave();
    this.glass.leave();
    this.source.light(null);
    this.target.mark(-1, -1);
    if (focus) this.target.focus(sentence, Math.max(0, word));
  }

  // The sentence that is looked at, else that which the caret is in, else the first that is translated.
  get here() {
    const { sentences, results } = this.writer;
    const has = (sentence) => results.has(sentences[sentence]?.key);
    return this.chosen?.sentence ?? (has(this.source.sentence) ? this.source.sentence : sentences.findIndex((_, n) => has(n)));
  }

  // Offer other translations of a sentence.
  showOthers(sentence = this.here) {
    const { sentences, results } = this.writer;
    const { key } = sentences[sentence];
    this.chosen = { key, sentence, word: -1 };
    this.trouble = null;
    this.glass.leave();
    this.open(false);
    this.source.light(null);
    this.target.mark(-1, -1);
    return this.attempt(() => this.choices.showLines(results.get(key)));
  }

  // Take what was chosen among other words or other translations; while the server is asked for it, more may be chosen.
  take({ result, prefix, isCurrent }) {
    if (isCurrent) return null;
    const { key } = this.chosen;
    const mine = (this.taking = Symbol("choice"));
    return this.attempt(async () => {
      const lost = (error) => {
        if (mine === this.taking) throw error; // else it is wanted no more
      };
      const made = result ?? (await this.goOn(prefix).catch(lost));
      if (!made || mine !== this.taking || !this.writer.sentences.some((one) => one.key === key)) return;
      this.writer.replace(key, made);
      if (this.chosen?.key !== key) return; // it is looked at no more
      if (!prefix) return this.close(); // another translation of all of it, not another word
      const { sentence, word } = this.chosen; // it may have moved
      const last = made.words.length - 1;
      const at = word < 0 ? last : Math.min(word, last);
      await this.choose(sentence, at);
      const { activeElement } = document;
      if (activeElement === document.body || this.panel.contains(activeElement)) this.target.focus(sentence, at);
    });
  }

  // The translation that begins with these pieces.
  async goOn(prefix) {
    const { q, source_pieces } = this.result;
    const { lines } = await this.api.translate({ q, run: this.run.run, beam: 1, prefixes: [prefix], scores: true, confidence: true });
    return resultOf(q, this.run, { ...lines[0], source_pieces });
  }

  undo() {
    this.taking = null;
    const sentence = this.undoable;
    if (this.chosen) this.close(false);
    this.writer.undo(this.writer.sentences[sentence].key);
    this.target.focus(sentence, 0);
  }
}

// Copy a text; also where the page isn't from a secure address, which the clipboard's interface wants.
async function copied(text) {
  if (navigator.clipboard)
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  const { activeElement } = document;
  const field = make("textarea", { class: "unseen" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  activeElement?.focus();
  return done;
}
