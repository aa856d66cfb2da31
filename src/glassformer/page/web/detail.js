// The weights around the chosen token, one cell each, for maps that are too coarse to show them.
import { ARROWS, colour, isEnter, make, percent, shade, sized, within } from "./drawing.js";

const AROUND = 40; // cells
const WIDEST = 400; // CSS pixels

export class Detail {
  constructor(page) {
    this.page = page;
    this.canvas = make("canvas", {
      class: "detail",
      tabindex: 0,
      role: "img",
      "aria-label": "The weights around the chosen token, one by one. Arrow keys move over them, Enter chooses a token.",
      onpointermove: (event) => event.pointerType === "mouse" && this.page.say(this.page.pair(...this.at(event))),
      onpointerleave: (event) => event.pointerType === "mouse" && this.page.say(this.page.pair(...this.marked)),
      onpointerdown: (event) => this.choose(this.at(event)),
      onkeydown: (event) => this.steer(event),
    });
    this.says = make("p", { class: "says" });
    this.element = make("div", {}, make("div", { class: "scroll" }, this.canvas), this.says);
  }

  // Show the cells around the chosen token, with a frame around its largest weight, or around the given cell.
  draw(marked) {
    const { head, cell, root } = this.page;
    this.element.hidden = !(head.coarse && head.has("top"));
    if (this.element.hidden) return;
    this.marked = marked ?? cell;
    const lengths = [head.queries, head.keys];
    if (!marked || !this.holds(marked))
      this.first = this.marked.map((n, axis) => within(n - AROUND / 2, 0, Math.max(0, lengths[axis] - AROUND)));
    this.counts = lengths.map((length) => Math.min(AROUND, length));
    this.size = Math.max(5, Math.floor(Math.min(WIDEST, root.clientWidth - 40) / AROUND));
    this.paint();
  }

  holds(cell) {
    return this.first && cell.every((n, axis) => n >= this.first[axis] && n < this.first[axis] + this.counts[axis]);
  }

  paint() {
    const { page, size } = this;
    const [[top, left], [rows, columns]] = [this.first, this.counts];
    const lines = Array.from({ length: rows }, (_, row) =>
      page.head.line("from", top + row).filter(([key]) => key >= left && key < left + columns),
    );
    const most = lines.flat().reduce((a, [, weight]) => Math.max(a, weight), 0);
    const context = sized(this.canvas, columns * size, rows * size);
    context.fillStyle = page.style("--unknown");
    context.fillRect(0, 0, columns * size, rows * size);
    lines.forEach((found, row) => {
      for (const [key, weight] of found) {
        context.fillStyle = colour(page.palette, shade(weight, most));
        context.fillRect((key - left) * size, row * size, size, size);
      }
    });
    const [q, k] = this.marked;
    context.strokeStyle = page.style("--accent");
    context.lineWidth = 2;
    context.strokeRect((k - left) * size, (q - top) * size, size, size);
    this.says.textContent =
      `Queries ${top} to ${top + rows - 1}, keys ${left} to ${left + columns - 1}, one cell for each weight. Grey cells are not ` +
      `among the query's largest weights. The stronger the colour, the larger the weight, from 0 to ${percent(most)}. ` +
      `Framed: ${page.pair(q, k)}.`;
  }

  // The cell under the pointer.
  at(event) {
    return [event.offsetY, event.offsetX].map((place, axis) => this.first[axis] + within(Math.floor(place / this.size), 0, this.counts[axis] - 1));
  }

  choose(cell) {
    const { first } = this;
    this.page.choose({ token: this.page.state.side === "from" ? cell[0] : cell[1] });
    this.first = first; // the clicked cell stays where it is
    this.draw(cell);
    this.page.say(this.page.pair(...cell));
  }

  steer(event) {
    const step = ARROWS[event.key];
    if (!step && !isEnter(event)) return;
    event.preventDefault();
    if (!step) return this.choose(this.marked);
    this.marked = this.marked.map((n, axis) => within(n + step[axis], this.first[axis], this.first[axis] + this.counts[axis] - 1));
    this.paint();
    this.page.say(this.page.pair(...this.marked));
  }
}
