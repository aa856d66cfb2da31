// The translation: its words can be chosen, those that are unsure are underlined, what is being written is faint.
import { colour, ink, isEnter, make, percent, reveal, shade } from "../web/drawing.js";
import { roving, stopAt } from "./keys.js";

const UNSURE = [0.5, 0.25]; // probabilities below which a word is underlined, and underlined twice
const WORD = ".word";

export class Target {
  constructor(app) {
    const { words } = app;
    this.app = app;
    this.shown = []; // of each sentence: what it shows, and its element
    this.text = make("div", { class: "written", role: "group", "aria-label": words.translation });
    roving(this.text, WORD);
    this.hint = make("p", { class: "says" });
    const button = (name, act) => make("button", { type: "button", onclick: act }, words[name]);
    this.buttons = { copy: button("copy", () => app.copy()), others: button("others", () => app.showOthers()), undo: button("undo", () => app.undo()) };
    const tools = make("div", { class: "tools" }, ...Object.values(this.buttons));
    this.element = make("section", { class: "pane target", "aria-label": words.translation }, this.text, this.hint, tools);
  }

  // Show the sentences of the writer in their lines; only those that changed are made anew.
  draw() {
    const { writer, words, run } = this.app;
    const { sentences, gaps } = writer;
    this.text.lang = run?.target ?? "";
    sentences.forEach((one, n) => {
      const [result, failure, text] = [writer.results.get(one.key), writer.failures.get(one.key), writer.shown(one)];
      const of = { result, failure, text, isDraft: writer.isDrafted(one) };
      this.shown[n] ??= { of: {}, spaces: [new Text(), new Text()] };
      const shown = this.shown[n];
      [one.before, gaps[n]].forEach((space, side) => shown.spaces[side].data === space || (shown.spaces[side].data = space));
      if (Object.keys(of).every((name) => shown.of[name] === of[name])) return;
      Object.assign(shown, { of, element: this.sentence(one, of, n) });
    });
    this.shown.length = sentences.length;
    const lines = [];
    sentences.forEach(({ line }, n) => {
      const { element, spaces } = this.shown[n];
      (lines[line] ??= []).push(spaces[0], element, spaces[1]);
    });
    while (this.text.children.length < lines.length) this.text.append(make("div", { class: "line", dir: "auto" }));
    while (this.text.children.length > lines.length) this.text.lastChild.remove();
    lines.forEach((elements, n) => hold(this.text.children[n], elements));
    stopAt(this.text, WORD, this.text.querySelector(`${WORD}[tabindex="0"]`));
    this.text.setAttribute("aria-busy", String(writer.waiting().length > 0));
    const done = sentences.filter(({ key }) => writer.results.has(key));
    const isUnsure = this.text.querySelector(".unsure") !== null;
    const isCalibrated = done.some(({ key }) => writer.results.get(key).words.some(({ right }) => (right ?? null) !== null));
    const unsure = isCalibrated ? words.doubtful : words.unsure;
    this.hint.textContent = done.length ? [words.hint, isUnsure ? unsure(percent(UNSURE[0])) : ""].join(words.page.space) : "";
    this.buttons.copy.disabled = !done.length;
    this.buttons.others.disabled = !done.length;
    this.buttons.undo.hidden = this.app.undoable < 0;
  }

  sentence(sentence, { result, failure, text, isDraft }, n) {
    const isStale = !result && !isDraft;
    const element = make("span", { class: isStale ? "sentence stale" : "sentence" });
    if (failure) element.append(...this.failed(failure));
    else if (result) element.append(...this.wordsOf(result, n));
    else if (isStale) element.append(text);
    else element.append(...this.draft(sentence));
    return element;
  }

  failed(failure) {
    const { words } = this.app;
    const again = make("button", { type: "button", class: "again", onclick: () => this.app.retry() }, words.again);
    return [make("span", { class: "failure" }, words.failure(failure)), " ", failure.code === "deadline" ? again : ""];
  }

  // What is written of a sentence, and faint what follows of the text that it takes the place of.
  draft({ stale }) {
    const { text } = this.app.writer.draft;
    const rest = text.length < stale.length ? stale.slice(text.length) : "";
    return [text, make("span", { class: "caret", "aria-hidden": "true" }), make("span", { class: "rest", "aria-hidden": "true" }, rest)];
  }

  wordsOf(result, sentence) {
    const letters = [...result.text];
    const parts = [];
    let at = 0;
    result.words.forEach(({ start, end, right, probability: own }, n) => {
      const probability = right ?? own; // calibrated, where the run has a calibration
      const isUnsure = UNSURE.filter((least) => probability < least).length;
      const name = letters.slice(start, end).join("");
      const word = make(
        "span",
        {
          class: `word${isUnsure ? " unsure" : ""}${isUnsure > 1 ? " very" : ""}`,
          role: "button",
          tabindex: -1,
          title: percent(probability),
          "aria-label": isUnsure ? `${name}, ${percent(probability)}` : null,
          "aria-pressed": "false",
          onclick: () => this.isSelecting() || this.app.choose(sentence, n),
          onkeydown: (event) => {
            if (!isEnter(event)) return;
            event.preventDefault();
            this.app.choose(sentence, n);
          },
        },
        name,
      );
      parts.push(letters.slice(at, start).join(""), word);
      at = end;
    });
    return [...parts, letters.slice(at).join("")];
  }

  // Whether the mouse has just marked text, to copy it: that is no click on a word.
  isSelecting() {
    const selection = window.getSelection();
    return !selection.isCollapsed && this.text.contains(selection.anchorNode);
  }

  word(sentence, n) {
    return this.shown[sentence]?.element.querySelectorAll(WORD)[n];
  }

  focus(sentence, n) {
    this.word(sentence, n)?.focus();
  }

  // Scroll to the word that is chosen, or looks most.
  reveal() {
    if (this.strongest) reveal(this.text, this.strongest);
  }

  // Frame the chosen word, and colour the words of its sentence by these weights, if given.
  mark(sentence, n, weights = []) {
    const most = weights.reduce((a, b) => Math.max(a, b), 0);
    for (const word of this.text.querySelectorAll(`.heat, ${WORD}[aria-pressed="true"]`)) {
      word.setAttribute("aria-pressed", "false");
      word.classList.remove("heat");
      word.removeAttribute("style");
    }
    const chosen = this.word(sentence, weights.length ? weights.indexOf(most) : n);
    if (chosen && !weights.length) chosen.setAttribute("aria-pressed", "true");
    this.strongest = chosen ?? null;
    weights.forEach((weight, at) => {
      const word = this.word(sentence, at);
      word.classList.add("heat");
      word.style.background = colour(this.app.palette, shade(weight, most));
      word.style.color = ink(this.app.palette, shade(weight, most));
    });
  }
}

// Let an element hold these children, and leave alone those that are in their place: what is in focus or marked stays so.
function hold(parent, children) {
  for (const child of [...parent.childNodes]) if (!children.includes(child)) child.remove();
  children.forEach((child, n) => child === parent.childNodes[n] || parent.insertBefore(child, parent.childNodes[n] ?? null));
}
