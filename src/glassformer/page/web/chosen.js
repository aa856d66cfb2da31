// What is chosen of a page's data: a hypothesis, a head, a token and the side that it is on; and this in words.
import { Head } from "./data.js";
import { PALETTES, atMost, percent, quoted } from "./drawing.js";
import { nameOf } from "./overview.js";

export class Chosen {
  // The theme of `root` is that of the pictures, `words` those of a language (words.js).
  constructor(root, data, words) {
    this.root = root;
    this.data = data;
    this.words = words;
    this.heads = new Map();
    this.state = { of: 0, at: "", head: 0, token: -1, side: "from" }; // token -1: the first that has letters or digits
  }

  get palette() {
    return PALETTES[this.theme];
  }

  get theme() {
    return this.root.dataset.theme;
  }

  get hypothesis() {
    return this.data.hypotheses[this.state.of];
  }

  get view() {
    return this.hypothesis.views.find((view) => view.path === this.state.at);
  }

  get head() {
    return this.headOf(this.view, this.state.head);
  }

  get name() {
    return nameOf(this.view, this.state.head, this.words);
  }

  headOf(view, n) {
    const key = `${this.state.of} ${view.path} ${n}`;
    if (!this.heads.has(key)) this.heads.set(key, new Head(view, n));
    return this.heads.get(key);
  }

  // The chosen token and where its largest weight is, as [query, key].
  get cell() {
    const { side, token } = this.state;
    const best = this.head.best(side, token);
    return side === "from" ? [token, best] : [best, token];
  }

  // How many tokens are chosen: the one of the state, and those after it.
  get span() {
    return 1;
  }

  tokens(side) {
    return this.hypothesis.axes[side === "from" ? this.view.queries : this.view.keys];
  }

  // A colour of the theme.
  style(name) {
    this.styles ??= {};
    return (this.styles[`${this.theme} ${name}`] ||= getComputedStyle(this.root).getPropertyValue(name).trim());
  }

  // Make sure that what is chosen exists.
  settle() {
    const { state } = this;
    if (!this.view?.heads.length) Object.assign(state, this.hypothesis.start);
    state.head = Math.min(state.head, this.view.heads.length - 1);
    const tokens = this.tokens(state.side);
    if (state.token < 0) state.token = Math.max(0, tokens.findIndex((token) => /[\p{L}\p{N}]/u.test(token)));
    state.token = Math.min(state.token, tokens.length - 1);
  }

  pair(q, k) {
    const [from, to] = [this.tokens("from")[q], this.tokens("to")[k]].map(quoted);
    const { value, exact } = this.head.weight(q, k);
    return `${from} → ${to}: ${exact ? percent(value) : atMost(value)}`;
  }

  // The chosen token's largest weights, in words.
  summary() {
    if (!this.head.has("weights") && !this.head.has("top")) return this.words.notCaptured;
    const { side, token } = this.state;
    const others = this.tokens(side === "from" ? "to" : "from");
    const line = this.head.line(side, token).map(([n, weight]) => [others[n], weight]);
    return this.sentence(this.tokens(side)[token], line);
  }

  // A sentence about the largest of some weights, each beside its token.
  sentence(token, line) {
    const { looksAt, isLookedAtBy, noToken } = this.words;
    const best = line.filter(([, weight]) => weight > 0).sort((a, b) => b[1] - a[1]).slice(0, 3);
    const others = best.map(([other, weight]) => `${quoted(other)} ${percent(weight)}`).join(", ");
    return (this.state.side === "from" ? looksAt : isLookedAtBy)(quoted(token), others || noToken);
  }
}
