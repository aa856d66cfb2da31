// Chooses the languages, or where a run doesn't say its own, the run.
import { make } from "../web/drawing.js";
import { areNamed, between, from, named, reverse, sources, targets } from "./languages.js";

export class Bar {
  constructor(app) {
    this.app = app;
    this.element = make("section", { class: "pair", "aria-label": app.words.languages });
  }

  // Show what can be chosen. What had the focus has it still.
  draw() {
    const { runs, run, words } = this.app;
    const focused = this.element.contains(document.activeElement) ? document.activeElement.name : null;
    const parts = [];
    if (run && areNamed(runs)) {
      const others = between(runs, run.source, run.target);
      const back = reverse(runs, run);
      parts.push(
        this.select("from", words.from, named(sources(runs), words.code), run.source, (code) => from(runs, code, run.target)),
        make("button", { type: "button", name: "swap", class: "swap", "aria-label": words.swap, title: back ? words.swap : words.noSwap, disabled: !back, onclick: () => this.app.swap(back) }, "⇄"),
        this.select("to", words.to, named(targets(runs, run.source), words.code), run.target, (code) => between(runs, run.source, code)[0]),
      );
      if (others.length > 1) parts.push(this.byName(others));
    } else if (run) parts.push(this.byName(runs));
    this.element.replaceChildren(...parts);
    if (focused) this.element.querySelector(`[name="${focused}"]`)?.focus();
  }

  byName(runs) {
    const options = runs.map(({ run }) => [run, run]);
    return this.select("run", this.app.words.model, options, this.app.run.run, (name) => runs.find(({ run }) => run === name));
  }

  select(name, label, options, chosen, runOf) {
    const onchange = (event) => this.app.use(runOf(event.target.value));
    const all = options.map(([value, words]) => make("option", { value, selected: value === chosen }, words));
    return make("select", { name, "aria-label": label, onchange, disabled: all.length < 2 }, ...all);
  }
}
