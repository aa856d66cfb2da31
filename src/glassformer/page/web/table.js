// The same numbers as tables, for readers who can't see pictures.
import { ALONG } from "./data.js";
import { make, number, percent, visible, within } from "./drawing.js";

const WHOLE = 900; // cells
const ROWS = 200;

export class Table {
  constructor(page) {
    this.page = page;
    this.body = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tables of weights" });
    this.element = make("details", { class: "table", ontoggle: () => this.draw() }, make("summary", {}, "As a table"), this.body);
  }

  // Show the numbers of the chosen token.
  draw() {
    if (!this.element.open) return;
    const { head } = this.page;
    const whole = head.has("weights") && head.queries * head.keys <= WHOLE;
    this.body.replaceChildren(whole ? this.whole() : this.largest(), ...this.along());
  }

  whole() {
    const { page } = this;
    const keys = page.tokens("to");
    const rows = page.tokens("from").map((token, q) => [visible(token), ...keys.map((_, k) => percent(page.head.weight(q, k).value))]);
    return table("Weights of every query (row) on every key (column)", ["query \\ key", ...keys.map(visible)], rows);
  }

  largest() {
    const { page } = this;
    const others = page.tokens(page.state.side === "from" ? "to" : "from");
    const line = page.head.line(page.state.side, page.state.token).sort((a, b) => b[1] - a[1]);
    const rows = line.slice(0, ROWS).map(([n, weight]) => [visible(others[n]), String(n), percent(weight)]);
    const left = line.length > ROWS ? ` These are the ${ROWS} largest of ${line.length} weights.` : "";
    const known = page.head.has("weights") ? "" : ` Only the known weights are listed; there are ${others.length} tokens.`;
    return table(`${page.summary()}.${left}${known}`, ["token", "position", "weight"], rows);
  }

  // Entropy and received, around the chosen token.
  along() {
    const { page } = this;
    return ALONG.filter(([name]) => page.head.has(name)).map(([name, side, title, unit]) => {
      const [tokens, values] = [page.tokens(side), page.head.fact(name)];
      const first = within(page.cell[side === "from" ? 0 : 1] - ROWS / 2, 0, Math.max(0, tokens.length - ROWS));
      const some = tokens.slice(first, first + ROWS);
      const rows = some.map((token, i) => [visible(token), String(first + i), number(values[first + i])]);
      const which = some.length < tokens.length ? ` (${first} to ${first + some.length - 1} of ${tokens.length})` : "";
      return table(`${title}, ${unit}${which}`, ["token", "position", unit], rows);
    });
  }
}

function table(caption, head, rows) {
  const named = (words, scope) => make("th", { scope, dir: "auto" }, words);
  const body = rows.map(([first, ...rest]) => make("tr", {}, named(first, "row"), ...rest.map((words) => make("td", {}, words))));
  const top = make("thead", {}, make("tr", {}, ...head.map((words) => named(words, "col"))));
  return make("table", {}, make("caption", {}, caption), top, make("tbody", {}, ...body));
}
