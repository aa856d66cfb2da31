// The texts: one token is chosen, those on the other side of the attention are coloured by its weights.
import { ARROWS, colour, ink, make, marked, percent, reveal, shade } from "./drawing.js";

const CHUNK = 100; // tokens that are laid out together
const NAMES = { source: "Source", target: "Target", next: "Translation", written: "Written before", tokens: "Tokens" };
const ORDER = ["source", "target", "next", "written", "tokens"];
const RIGHT_TO_LEFT = /^\P{L}*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u; // by the first letter
const SPECIAL = /^(<[^<>\s]+>|\[[A-Z]+\])$/; // <pad>, [CLS]: no text
const VEIL = 0.8; // how much a patch without weight hides of the image

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
    this.element = make("div", { class: "reading" }, this.lists, this.says);
    this.painted = [];
  }

  // The axis of the tokens on a side of the chosen attention.
  axis(side) {
    return side === "from" ? this.page.view.queries : this.page.view.keys;
  }

  // The side on which an axis takes part in the chosen attention. In attention of a text to itself it is both.
  sideOf(axis) {
    const { view, state } = this.page;
    if (view.queries === view.keys) return axis === view.keys ? state.side : undefined;
    return { [view.queries]: "from", [view.keys]: "to" }[axis];
  }

  // Which token to choose when the side changes: the same one, if both sides are the same text.
  onOther(side) {
    const { page } = this;
    if (side === page.state.side || page.view.queries === page.view.keys) return page.state.token;
    return page.head.best(page.state.side, page.state.token);
  }

  // Show all texts of the hypothesis; those that take no part in the chosen attention are faint. What was written
  // before is the translation again, one token later, and is left out then.
  layOut() {
    const { state, hypothesis } = this.page;
    if (this.shown !== state.of) {
      this.shown = state.of;
      this.blocks = {};
      for (const axis of ORDER.filter((name) => name in hypothesis.axes)) this.blocks[axis] = this.block(axis);
      this.lists.replaceChildren(...Object.values(this.blocks).map(({ element }) => element));
      this.painted = [];
    }
    for (const [axis, { element }] of Object.entries(this.blocks)) {
      const takesPart = this.sideOf(axis) !== undefined;
      element.classList.toggle("aside", !takesPart);
      element.hidden = axis === "written" && !takesPart;
    }
  }

  // The tokens of an axis. With a grid, the last of them are the patches of an image.
  block(axis) {
    const { page } = this;
    const { axes, grids, images } = page.hypothesis;
    const [tokens, grid, name] = [axes[axis], grids[axis], NAMES[axis]];
    const dir = !grid && RIGHT_TO_LEFT.test(tokens.filter((token) => !SPECIAL.test(token)).join("")) ? "rtl" : "ltr";
    const list = make("div", { class: grid ? "tokens pictured" : "tokens", role: "listbox", tabindex: 0, "aria-label": name, dir });
    const chips = tokens.map((token, n) =>
      make("span", { class: "token", role: "option", dir: "auto", "data-n": n, id: `${page.id}-${axis}-${n}` }, ...marked(token)),
    );
    const lead = grid ? chips.length - grid[0] * grid[1] : chips.length;
    for (let first = 0; first < lead; first += CHUNK)
      list.append(make("div", { class: "chunk" }, ...chips.slice(first, Math.min(lead, first + CHUNK))));
    if (grid) {
      const patches = make("div", { class: "patches" }, ...chips.slice(lead));
      patches.style.gridTemplate = `repeat(${grid[0]}, 1fr) / repeat(${grid[1]}, 1fr)`;
      const box = make("div", { class: "image" }, images[axis] && drawn(images[axis]), patches);
      box.style.aspectRatio = (images[axis]?.shape ?? grid).slice(0, 2).reverse().join(" / ");
      list.append(box);
    }
    list.addEventListener("click", (event) => {
      const chip = event.target.closest(".token");
      if (chip) this.choose(axis, Number(chip.dataset.n));
    });
    list.addEventListener("keydown", (event) => this.step(event, axis, grid));
    const element = make("div", { class: "text" }, make("h3", {}, name), list);
    return { element, list, chips, veiled: images[axis] ? lead : Infinity };
  }

  // Choose a token. If its text takes no part in the chosen attention, go to one in which it does.
  choose(axis, token) {
    const { page } = this;
    const side = this.sideOf(axis);
    if (side !== undefined) return page.choose({ side, token });
    const { start, views } = page.hypothesis;
    const opening = views.find(({ path }) => path === start.at);
    const view = [opening, ...views].find(({ heads, queries, keys }) => heads.length && [queries, keys].includes(axis));
    if (view) page.choose({ at: view.path, head: view === opening ? start.head : 0, side: view.queries === axis ? "from" : "to", token });
  }

  // Scroll to the chosen token.
  reveal() {
    const { side, token } = this.page.state;
    const { list, chips } = this.blocks[this.axis(side)];
    reveal(list, chips[token]);
  }

  // Arrow keys move from token to token.
  step(event, axis, grid) {
    const arrow = ARROWS[event.key];
    if (!arrow) return;
    event.preventDefault();
    const { state } = this.page;
    const isChosen = this.axis(state.side) === axis;
    const ahead = this.blocks[axis].list.dir === "rtl" ? -arrow[1] : arrow[1];
    const token = isChosen ? state.token + arrow[0] * (grid ? grid[1] : 1) + ahead : 0;
    if (token >= 0 && token < this.blocks[axis].chips.length) this.choose(axis, token);
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
    const others = this.blocks[this.axis(side === "from" ? "to" : "from")];
    this.painted = line.map(([n, weight]) => {
      const chip = others.chips[n];
      const at = shade(weight, most);
      chip.style.background = n < others.veiled ? colour(palette, at) : veil(VEIL * (1 - at / 255));
      chip.style.color = ink(palette, at);
      chip.title = percent(weight);
      return chip;
    });
    const { list, chips } = this.blocks[this.axis(side)];
    chips[token].classList.add("chosen");
    chips[token].setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", chips[token].id);
    this.painted.push(chips[token]);
    this.says.textContent = this.stated(side, others.veiled < Infinity, most);
  }

  stated(side, hasImage, most) {
    if (!(most > 0)) return "The chosen token is framed. No weight that it has is known to be above 0.";
    const image = hasImage ? " In the image, patches with larger weights are clearer." : "";
    const unknown = this.page.head.has("weights") ? "" : " For tokens without colour the weight is not known.";
    return (
      `The chosen token is framed. The stronger the colour, the larger the weight that it ` +
      `${side === "from" ? "gives" : "receives"}, from 0 to ${percent(most)}.${image}${unknown}`
    );
  }
}

// The colour of a patch through which this share of the image is not seen.
const veil = (share) => `color-mix(in srgb, var(--paper) ${(100 * share).toFixed(1)}%, transparent)`;

// An image (height, width, 3) as a canvas.
function drawn(numbers) {
  const [height, width] = numbers.shape;
  const canvas = make("canvas", { role: "img", "aria-label": "The image" });
  Object.assign(canvas, { width, height });
  const pixels = new ImageData(width, height);
  numbers.range(0, numbers.count).forEach((value, n) => (pixels.data[Math.floor(n / 3) * 4 + (n % 3)] = value));
  for (let n = 3; n < pixels.data.length; n += 4) pixels.data[n] = 255;
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}
