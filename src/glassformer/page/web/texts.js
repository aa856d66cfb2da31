// The tokens: one is chosen, the others are coloured by its weights.
import { ARROWS, colour, ink, make, percent, reveal, shade, visible } from "./drawing.js";

const CHUNK = 100; // tokens that are laid out together
const AXES = { source: "Source", target: "Target", next: "Target", written: "What was written", tokens: "Tokens" };

export class Texts {
  constructor(page) {
    this.page = page;
    this.sides = make("fieldset", { class: "sides" }, make("legend", {}, "Show"));
    for (const [side, words] of [
      ["from", "where a token looks"],
      ["to", "who looks at a token"],
    ]) {
      const onchange = () => page.choose({ side, token: this.onOther(side) });
      this.sides.append(make("label", {}, make("input", { type: "radio", name: page.id, value: side, onchange }), words));
    }
    this.says = make("p", { class: "says" });
    this.lists = make("div", { class: "texts" });
    this.element = make("div", {}, this.sides, this.lists, this.says);
    this.painted = [];
  }

  // Which token to choose when the side changes: the same one, if both sides are the same text.
  onOther(side) {
    const { page } = this;
    if (side === page.state.side || page.view.queries === page.view.keys) return page.state.token;
    return page.head.best(page.state.side, page.state.token);
  }

  // Show the texts of the chosen attention.
  layOut() {
    const { view, state, hypothesis } = this.page;
    const key = `${state.of} ${view.queries} ${view.keys}`;
    if (this.shown === key) return;
    this.shown = key;
    this.chips = {};
    const sides = view.queries === view.keys ? ["both"] : ["from", "to"];
    const blocks = sides.map((side) => {
      const axis = side === "to" ? view.keys : view.queries;
      const { list, chips } = this.list(axis, side, hypothesis.axes[axis], hypothesis.grids[axis]);
      for (const name of side === "both" ? ["from", "to"] : [side]) this.chips[name] = { list, chips };
      return make("div", {}, make("h3", {}, AXES[axis] ?? axis), list);
    });
    this.lists.replaceChildren(...blocks);
    this.painted = [];
  }

  // A list of tokens. With a grid, the last of them are the patches of a picture.
  list(axis, side, tokens, grid) {
    const list = make("div", { class: grid ? "tokens pictured" : "tokens", role: "listbox", tabindex: 0, "aria-label": AXES[axis] ?? axis });
    const chips = tokens.map((token, n) =>
      make("span", { class: "token", role: "option", dir: "auto", "data-n": n, id: `${this.page.id}-${side}-${n}` }, visible(token)),
    );
    const lead = grid ? chips.length - grid[0] * grid[1] : chips.length;
    for (let first = 0; first < lead; first += CHUNK)
      list.append(make("div", { class: "chunk" }, ...chips.slice(first, Math.min(lead, first + CHUNK))));
    if (grid) {
      const patches = make("div", { class: "patches" }, ...chips.slice(lead));
      patches.style.gridTemplateColumns = `repeat(${grid[1]}, 1fr)`;
      list.append(patches);
    }
    const which = () => (side === "both" ? this.page.state.side : side);
    list.addEventListener("click", (event) => {
      const chip = event.target.closest(".token");
      if (chip) this.page.choose({ side: which(), token: Number(chip.dataset.n) });
    });
    list.addEventListener("keydown", (event) => this.step(event, which(), grid));
    return { list, chips };
  }

  // Scroll to the chosen token.
  reveal() {
    const { list, chips } = this.chips[this.page.state.side];
    reveal(list, chips[this.page.state.token]);
  }

  // Arrow keys move from token to token.
  step(event, side, grid) {
    const arrow = ARROWS[event.key];
    if (!arrow) return;
    event.preventDefault();
    const { state } = this.page;
    const token = side === state.side ? state.token + arrow[0] * (grid ? grid[1] : 1) + arrow[1] : 0;
    if (token >= 0 && token < this.chips[side].chips.length) this.page.choose({ side, token });
  }

  // Colour the tokens by the weights of the chosen one.
  draw() {
    const { head, palette, state } = this.page;
    const { side, token } = state;
    for (const radio of this.sides.querySelectorAll("input")) radio.checked = radio.value === side;
    for (const chip of this.painted) {
      for (const name of ["style", "title", "aria-selected"]) chip.removeAttribute(name);
      chip.classList.remove("chosen");
    }
    const line = head.line(side, token);
    const most = line.reduce((a, [, weight]) => Math.max(a, weight), 0);
    const others = this.chips[side === "from" ? "to" : "from"].chips;
    this.painted = line.map(([n, weight]) => {
      const at = shade(weight, most);
      others[n].style.background = colour(palette, at);
      others[n].style.color = ink(palette, at);
      others[n].title = percent(weight);
      return others[n];
    });
    const { list, chips } = this.chips[side];
    chips[token].classList.add("chosen");
    chips[token].setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", chips[token].id);
    this.painted.push(chips[token]);
    this.says.textContent =
      `The chosen token is framed. The darker, the larger the weight that it ${side === "from" ? "gives" : "receives"}: ` +
      `white is 0, the darkest ${percent(most)}.${head.has("weights") ? "" : " For tokens without colour the weight is not known."}`;
  }
}
