// The chosen head, large: a cell for each weight, or for each tile of weights.
import { ARROWS, isEnter, make, percent, short, sized, visible, within } from "./drawing.js";
import { labelsOf, paint, widest } from "./saving.js";

const ROOM = { width: 640, height: [420, 900] }; // CSS pixels that a map may take; in height as the window allows
const AROUND_MAP = 330; // CSS pixels that the window shows above and below a map
const CELL = { most: 34, labelled: 11 }; // CSS pixels
const LETTERS = { least: 10, most: 14 }; // CSS pixels of the labels

export class HeadMap {
  constructor(page) {
    this.page = page;
    this.map = make("canvas", { class: "map", "aria-hidden": "true" });
    this.cross = make("canvas", {
      class: "cross",
      tabindex: 0,
      role: "img",
      "aria-roledescription": page.words.mapRole,
      onpointermove: (event) => event.pointerType === "mouse" && this.hover(event),
      onpointerleave: (event) => event.pointerType === "mouse" && this.mark(),
      onpointerdown: (event) => this.press(event),
      onkeydown: (event) => this.steer(event),
    });
    this.figure = make("div", { class: "figure", hidden: true }, this.map, this.cross);
    this.says = make("p", { class: "says" });
    this.element = make("div", { class: "scroll" }, this.figure);
  }

  // Draw the chosen head.
  draw() {
    const { head, root, name, words } = this.page;
    this.cross.setAttribute("aria-label", words.mapKeys(name));
    this.says.textContent = this.stated();
    this.pinned = null;
    this.drawnAt = root.clientWidth;
    this.figure.hidden = !head.map;
    if (!head.map) return;
    this.layOut(head.map, Math.max(240, Math.min(ROOM.width, this.drawnAt - 40)));
    const { width, height, margin, map } = this.cells;
    const [w, h] = [margin + width * map.columns, margin + height * map.rows];
    paint(sized(this.map, w, h), this.drawing());
    sized(this.cross, w, h);
    this.figure.style.width = `${w}px`;
    this.figure.style.height = `${h}px`;
  }

  // Decide where the cells are.
  layOut(map, room) {
    const tall = within(window.innerHeight - AROUND_MAP, ...ROOM.height);
    const size = (margin) => Math.min(CELL.most, Math.floor((room - margin) / map.columns), Math.floor((tall - margin) / map.rows));
    const texts = map.tile[0] === 1 && map.tile[1] === 1 && size(0) >= CELL.labelled ? this.labels() : [];
    const beside = texts.length ? 10 + widest(texts, this.font(LETTERS.most)) : 0;
    const labels = texts.length > 0 && size(beside) >= CELL.labelled;
    const margin = labels ? beside : 0;
    const side = size(margin);
    const [width, height] = side ? [side, side] : [Math.min(1, room / map.columns), Math.min(1, tall / map.rows)];
    this.cells = { width, height, margin, labels, map, letters: within(side - 3, LETTERS.least, LETTERS.most) };
  }

  labels() {
    return ["from", "to"].flatMap((side) => this.page.tokens(side).map(short));
  }

  font(size) {
    return `${size}px ${getComputedStyle(this.page.root).fontFamily}`;
  }

  // The drawing that saving.js writes.
  drawing() {
    const { page, cells } = this;
    return {
      cells,
      labels: cells.labels ? labelsOf(cells, page.tokens("from"), page.tokens("to")) : [],
      says: [`${visible(page.data.title)}: ${page.name}`, this.stated()],
      palette: page.palette,
      paper: page.style("--paper"),
      ink: page.style("--ink"),
      font: this.font(cells.letters),
    };
  }

  stated() {
    const { view, head, words } = this.page;
    const [least, most] = view.rows;
    const rows = least > 0.99 && most < 1.01 ? words.whole : words.partly(least, most);
    const precise = view.exact ? words.exact : words.rounded;
    const parts = [];
    if (head.has("weights")) parts.push(words.rowsAndColumns(rows), precise);
    else if (head.has("tiles")) parts.push(words.tiles(...view.tile, rows));
    else parts.push(words.noMap);
    if (view.mean) parts.push(words.isMean);
    if (head.map) parts.push(words.upTo(head.map.most));
    if (!head.has("weights") && head.has("top")) parts.push(words.onlyLargest(view.facts.top.shape[2]), precise);
    if (view.dropped) parts.push(words.dropped(view.dropped));
    return parts.join(words.space);
  }

  // The cell under the pointer, as [query, key]. Beside the map one of them is below 0.
  at(event) {
    const { width, height, margin, map } = this.cells;
    const column = Math.floor((event.offsetX - margin) / width);
    const row = Math.floor((event.offsetY - margin) / height);
    if (row >= map.rows || column >= map.columns || (row < 0 && column < 0)) return null;
    return [row * map.tile[0], column * map.tile[1]];
  }

  hover(event) {
    const cell = this.at(event);
    if (cell && cell[0] >= 0 && cell[1] >= 0) this.mark(cell);
  }

  press(event) {
    const cell = this.at(event);
    if (!cell) return;
    const [q, k] = cell;
    if (k < 0) this.page.choose({ side: "from", token: q });
    else if (q < 0) this.page.choose({ side: "to", token: k });
    else {
      this.page.choose({ token: this.page.state.side === "from" ? q : k });
      this.pin(cell);
    }
  }

  steer(event) {
    const { map } = this.cells;
    const { head, state } = this.page;
    const [q, k] = this.pinned ?? this.page.cell;
    const step = ARROWS[event.key];
    if (!step && !isEnter(event)) return;
    event.preventDefault();
    if (!step) this.page.choose({ token: state.side === "from" ? q : k });
    const [down, right] = step ?? [0, 0];
    this.pin([within(q + down * map.tile[0], 0, head.queries - 1), within(k + right * map.tile[1], 0, head.keys - 1)]);
  }

  // Mark a cell until something else is chosen.
  pin(cell) {
    this.pinned = cell;
    this.mark();
  }

  // Frame the rows or columns of the chosen tokens, and those of a cell, and say its weight.
  mark(cell = this.pinned) {
    const { page } = this;
    page.say(cell ? this.said(...cell) : page.summary());
    if (this.figure.hidden) return;
    const { width, height, margin, map } = this.cells;
    const context = this.cross.getContext("2d");
    context.clearRect(0, 0, this.cross.width, this.cross.height);
    context.strokeStyle = page.style("--accent");
    context.lineWidth = 1.5;
    const out = Math.min(width, height) < 8 ? 1 : 0; // a frame must not cover small cells
    const frame = (x, y, w, h) => context.strokeRect(margin + x - out, margin + y - out, w + 2 * out, h + 2 * out);
    const row = (q, count) => frame(0, Math.floor(q / map.tile[0]) * height, width * map.columns, height * count);
    const column = (k, count) => frame(Math.floor(k / map.tile[1]) * width, 0, width * count, height * map.rows);
    const { side, token } = page.state;
    (side === "from" ? row : column)(token, page.span);
    if (cell) {
      row(cell[0], 1);
      column(cell[1], 1);
    }
  }

  said(q, k) {
    const { head, words } = this.page;
    if (!head.coarse) return this.page.pair(q, k);
    const { map } = head;
    const [row, column] = [Math.floor(q / map.tile[0]), Math.floor(k / map.tile[1])];
    const last = [Math.min(head.queries, (row + 1) * map.tile[0]), Math.min(head.keys, (column + 1) * map.tile[1])];
    const share = percent(map.values[row * map.columns + column]);
    return words.tile(`${row * map.tile[0]}–${last[0] - 1}`, `${column * map.tile[1]}–${last[1] - 1}`, share);
  }
}
