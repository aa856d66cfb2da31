// The translation: its words can be chosen, those that are unsure are underlined, what is being written is faint.
import { colour, ink, isEnter, make, percent, reveal, shade } from "../web/drawing.js";
import { roving, stopAt } from "./keys.js";

const UNSURE = [0.5, 0.25]; // probabilities below which a word is underlined, and underlined twice
const WORD = ".word";

export class Target {
  constructor(app) {
    const { words } = app;
    this.app = app;
    this.shown = []; // of each line: what it shows, and its element
    this.text = make("div", { class: "written", role: "group", "aria-label": words.translation });
    roving(this.text, WORD);
    this.hint = make("p", { class: "says" });
    const button = (name, act) => make("button", { type: "button", onclick: act }, words[name]);
    this.buttons = { copy: button("copy", () => app.copy()), others: button("others", () => app.showOthers()), undo: button("undo", () => app.undo()) };
    const tools = make("div", { class: "tools" }, ...Object.values(this.buttons));
    this.element = make("section", { class: "pane target", "aria-label": words.translation }, this.text, this.hint, tools);
  }

  // Show the lines of the writer; only those that changed are made anew.
  draw() {
    const { writer, words, run } = this.app;
    const { lines } = writer;
    this.text.lang = run?.target ?? "";
    lines.forEach((line, n) => {
      const [result, failure, text] = [writer.results.get(line.key), writer.failures.get(line.key), writer.shown(line)];
      const of = { result, failure, text, before: line.before, after: line.after, isDraft: writer.isDrafted(line) };
      if (this.shown[n] && Object.keys(of).every((name) => this.shown[n].of[name] === of[name])) return;
      const element = this.line(line, of, n);
      if (this.shown[n]) this.shown[n].element.replaceWith(element);
      else this.text.append(element);
      this.shown[n] = { of, element };
    });
    for (const { element } of this.shown.splice(lines.length)) element.remove();
    stopAt(this.text, WORD, this.text.querySelector(`${WORD}[tabindex="0"]`));
    this.text.setAttribute("aria-busy", String(writer.waiting().length > 0));
    const done = lines.filter(({ key }) => writer.results.has(key));
    const isUnsure = this.text.querySelector(".unsure") !== null;
    const isCalibrated = done.some(({ key }) => writer.results.get(key).words.some(({ right }) => (right ?? null) !== null));
    const unsure = isCalibrated ? words.doubtful : words.unsure;
    this.hint.textContent = done.length ? [words.hint, isUnsure ? unsure(percent(UNSURE[0])) : ""].join(words.page.space) : "";
    this.buttons.copy.disabled = !done.length;
    this.buttons.others.disabled = !done.length;
    this.buttons.undo.hidden = this.app.undoable < 0;
  }

  line(line, { result, failure, text, isDraft }, n) {
    const isStale = !result && !isDraft;
    const element = make("div", { class: isStale ? "line stale" : "line", dir: "auto" });
    if (failure) element.append(...this.failed(failure));
    else if (result) element.append(line.before, ...this.wordsOf(result, n), line.after);
    else if (isStale) element.append(line.before + text + line.after);
    else element.append(...this.draft(line));
    return element;
  }

  failed(failure) {
    const { words } = this.app;
    const again = make("button", { type: "button", class: "again", onclick: () => this.app.retry() }, words.again);
    return [make("span", { class: "failure" }, words.failure(failure)), " ", failure.code === "deadline" ? again : ""];
  }

  // What is written of a line, and faint what follows of the text that it takes the place of.
  draft({ before, stale }) {
    const { text } = this.app.writer.draft;
    const rest = text.length < stale.length ? stale.slice(text.length) : "";
    return [before, text, make("span", { class: "caret", "aria-hidden": "true" }), make("span", { class: "rest", "aria-hidden": "true" }, rest)];
  }

  wordsOf(result, line) {
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
          onclick: () => this.isSelecting() || this.app.choose(line, n),
          onkeydown: (event) => {
            if (!isEnter(event)) return;
            event.preventDefault();
            this.app.choose(line, n);
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

  word(line, n) {
    return this.shown[line]?.element.querySelectorAll(WORD)[n];
  }

  focus(line, n) {
    this.word(line, n)?.focus();
  }

  // Frame the chosen word, and colour the words of its line by these weights, if given.
  mark(line, n, weights = []) {
    const most = weights.reduce((a, b) => Math.max(a, b), 0);
    for (const word of this.text.querySelectorAll(`.heat, ${WORD}[aria-pressed="true"]`)) {
      word.setAttribute("aria-pressed", "false");
      word.classList.remove("heat");
      word.removeAttribute("style");
    }
    const chosen = this.word(line, weights.length ? weights.indexOf(most) : n);
    if (chosen && !weights.length) chosen.setAttribute("aria-pressed", "true");
    if (chosen) reveal(this.text, chosen);
    weights.forEach((weight, at) => {
      const word = this.word(line, at);
      word.classList.add("heat");
      word.style.background = colour(this.app.palette, shade(weight, most));
      word.style.color = ink(this.app.palette, shade(weight, most));
    });
  }
}
