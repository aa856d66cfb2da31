// Where the model looked as it chose a word: the heads as small maps, the chosen one large, and colours for the texts.
import { Chosen } from "../web/chosen.js";
import { make } from "../web/drawing.js";
import { HeadMap } from "../web/map.js";
import { Overview } from "../web/overview.js";
import { wordsOf } from "./align.js";

export class Glass extends Chosen {
  constructor(app) {
    const root = make("div", { class: "figures" });
    super(root, null, app.words.page);
    this.app = app;
    this.map = new HeadMap(this);
    this.overview = new Overview(this);
    this.title = make("h2", { class: "name" });
    this.readout = make("p", { class: "readout", "aria-live": "polite" });
    root.append(this.title, this.map.element, this.map.says);
    this.resizing = new ResizeObserver(() => root.clientWidth && this.map.drawnAt !== root.clientWidth && this.redraw());
    this.resizing.observe(root);
  }

  get theme() {
    return this.app.theme;
  }

  get span() {
    return this.count ?? 1;
  }

  // Show the attention of a translation, with a range of its pieces chosen.
  async show(result, first, last) {
    const mine = (this.newest = Symbol("request"));
    result.attention ??= this.app.api.attention(result);
    this.readout.setAttribute("aria-busy", "true");
    try {
      const data = await result.attention;
      if (mine !== this.newest) return;
      if (this.data !== data) this.take(result, data);
      this.choose({ side: "from", token: first, count: last - first });
    } catch (error) {
      result.attention = undefined; // to be asked for again
      if (mine !== this.newest) return;
      if (this.result !== result) this.app.figures.hidden = true; // they are another's
      throw error;
    } finally {
      if (mine === this.newest) this.readout.setAttribute("aria-busy", "false");
    }
  }

  // What was asked for is wanted no more.
  leave() {
    this.newest = null;
    this.readout.setAttribute("aria-busy", "false");
  }

  take(result, data) {
    this.data = data;
    this.heads = new Map();
    this.result = result;
    this.sourceWords = wordsOf(result.source_pieces, result.q);
    this.state.token = 0;
    this.settle();
    this.overview.draw();
    this.drawHead();
    this.overview.reveal();
  }

  choose({ count = 1, ...change }) {
    const before = { ...this.state };
    Object.assign(this.state, change);
    this.settle();
    if ("token" in change) this.widen(count);
    if (before.at !== this.state.at || before.head !== this.state.head) {
      this.overview.mark();
      this.drawHead();
    }
    this.map.pin(null);
    if ("token" in change) this.app.looked();
    this.paint();
    this.app.reveal();
  }

  // Choose the whole word that a token belongs to.
  widen(count) {
    const { token } = this.state;
    const [words] = this.sides;
    this.word = words.findIndex(({ first, last }) => first <= token && token < last);
    const { first, last } = words[this.word] ?? { first: token, last: token + count };
    this.state.token = first;
    this.count = last - first;
  }

  // The chosen tokens' mean weights on each token of the other side, or what each of these gives them together.
  weights() {
    const { side, token } = this.state;
    const others = new Float64Array(this.tokens(side === "from" ? "to" : "from").length);
    for (let n = token; n < token + this.span; n++)
      for (const [other, weight] of this.head.line(side, n)) others[other] += side === "from" ? weight / this.span : weight;
    return others;
  }

  // The same for the words of the other side: what a word of the source gets, or what one of the translation gives on average.
  shares(weights) {
    const isMean = this.state.side === "to";
    return this.sides[1].map(({ first, last }) => weights.slice(first, last).reduce((a, b) => a + b, 0) / (isMean ? last - first : 1));
  }

  // The words of the chosen side, and those of the other.
  get sides() {
    const both = [this.result.words, this.sourceWords];
    return this.state.side === "from" ? both : both.reverse();
  }

  // Colour the texts, and say it.
  paint() {
    this.light();
    this.say(this.summary());
  }

  // Colour the texts.
  light() {
    const shares = this.shares(this.weights());
    if (this.state.side === "from") this.app.lightSource(this.sourceWords, shares);
    else this.app.lightTarget(this.sourceWords, this.word, shares);
  }

  // The chosen word's largest weights, in words; the end of the source is no word, but may have some.
  summary() {
    const { side, token } = this.state;
    const [mine, theirs] = this.sides;
    const weights = this.weights();
    const shares = this.shares(weights);
    const line = theirs.map(({ text }, n) => [text, shares[n]]);
    if (side === "from" && !theirs.some(({ last }) => last === weights.length)) line.push([this.tokens("to").at(-1), weights.at(-1)]);
    return this.sentence(mine[this.word]?.text ?? this.tokens(side)[token], line);
  }

  say(words) {
    this.readout.textContent = words;
  }

  drawHead() {
    this.title.textContent = this.name;
    this.map.draw();
    this.map.pin(null);
  }

  // Draw again, in another size or theme; what is hidden, when it is shown.
  redraw() {
    if (!this.data) return;
    if (!this.root.clientWidth) return void (this.map.drawnAt = null);
    this.overview.draw();
    this.drawHead();
    this.paint();
  }

  destroy() {
    this.resizing.disconnect();
    this.overview.watching?.disconnect();
  }
}
