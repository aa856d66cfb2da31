// Shows attention inside an element: in a page of its own (show) or in a notebook (the default export, for anywidget).
// No library, no network. Tokens only ever become text nodes and attributes.

// ---- data ----

const FLOATS = new Float32Array(65536); // what a code of 16 bits stands for: 5 bits of exponent, 11 of fraction
for (let n = 1; n < 65536; n++) FLOATS[n] = 2 ** ((n >> 11) - 31) * (1 + (n & 2047) / 2048);

async function inflate(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Numbers lie in planes: all lowest bytes, then all second ones ... `of` gives a range of them.
class Numbers {
  constructor(bytes, { offset, count, type, scale, shape }) {
    Object.assign(this, { bytes, offset, count, type, scale, shape });
    this.width = { f4: 4, u4: 4, p2: 2, u2: 2 }[type];
  }

  of(start, length) {
    const { bytes, offset, count, width } = this;
    const raw = new Uint8Array(length * width);
    for (let plane = 0; plane < width; plane++) {
      const first = offset + plane * count + start;
      for (let i = 0; i < length; i++) raw[i * width + plane] = bytes[first + i];
    }
    if (this.type === "f4") return new Float32Array(raw.buffer);
    if (this.type === "u4") return new Uint32Array(raw.buffer);
    const codes = new Uint16Array(raw.buffer);
    return this.type === "u2" ? codes : Float32Array.from(codes, (n) => FLOATS[n] * this.scale);
  }

  // The part that belongs to one head: the first axis counts heads.
  head(n) {
    const length = this.count / this.shape[0];
    return this.of(n * length, length);
  }
}

export async function unpack(packed) {
  const bytes = await inflate(packed);
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const body = bytes.subarray(4 + length);
  for (const hypothesis of header.hypotheses)
    for (const view of hypothesis.views)
      for (const name in view.facts) view.facts[name] = new Numbers(body, view.facts[name]);
  return header;
}

// One head of one attention, its numbers decoded when first asked for.
class Head {
  constructor(view, n) {
    this.view = view;
    this.n = n;
    this.queries = view.sizes[0];
    this.keys = view.sizes[1];
    this.kept = {};
  }

  has(name) {
    return name in this.view.facts;
  }

  fact(name) {
    return (this.kept[name] ??= this.view.facts[name].head(this.n));
  }

  // What is drawn: weights, or the mean share of a query's attention that falls on a tile's keys.
  get map() {
    if (this.kept.map) return this.kept.map;
    let map = null;
    if (this.has("weights"))
      map = { rows: this.queries, columns: this.keys, values: this.fact("weights"), tile: [1, 1] };
    else if (this.has("tiles")) {
      const [, rows, columns] = this.view.facts.tiles.shape;
      const tile = this.view.tile;
      const values = this.fact("tiles").map((sum, i) => {
        const first = Math.floor(i / columns) * tile[0];
        return sum / Math.min(tile[0], this.queries - first);
      });
      map = { rows, columns, values, tile };
    }
    if (map) map.most = map.values.reduce((a, b) => Math.max(a, b), 0);
    return (this.kept.map = map);
  }

  // The weight of query q on key k: exactly, or the most that it can be.
  weight(q, k) {
    if (this.has("weights")) return { value: this.fact("weights")[q * this.keys + k], exact: true };
    const most = [1];
    let inTile = 0;
    if (this.has("top")) {
      const top = this.view.facts.top.shape[2];
      const [keys, weights] = [this.fact("keys"), this.fact("top")];
      let sum = 0;
      for (let i = q * top; i < (q + 1) * top; i++) {
        if (keys[i] === k) return { value: weights[i], exact: true };
        if (keys[i] === this.view.none) return { value: 0, exact: true }; // fewer than `top` are above zero
        sum += weights[i];
        if (this.view.tile && this.sameTile(keys[i], k)) inTile += weights[i];
      }
      most.push(weights[(q + 1) * top - 1], 1 - sum);
    }
    if (this.has("tiles")) {
      const [height, width] = this.view.tile;
      const columns = this.view.facts.tiles.shape[2];
      most.push(this.fact("tiles")[Math.floor(q / height) * columns + Math.floor(k / width)] - inTile);
    }
    return { value: Math.max(0, Math.min(...most)), exact: false };
  }

  sameTile(a, b) {
    return Math.floor(a / this.view.tile[1]) === Math.floor(b / this.view.tile[1]);
  }

  // Known weights [position, weight] of a query over keys, or of a key over queries.
  line(side, position) {
    const found = [];
    if (this.has("weights")) {
      const weights = this.fact("weights");
      if (side === "from") for (let k = 0; k < this.keys; k++) found.push([k, weights[position * this.keys + k]]);
      else for (let q = 0; q < this.queries; q++) found.push([q, weights[q * this.keys + position]]);
    } else if (this.has("top")) {
      const top = this.view.facts.top.shape[2];
      const [keys, weights] = [this.fact("keys"), this.fact("top")];
      if (side === "from") {
        for (let i = position * top; i < (position + 1) * top; i++)
          if (keys[i] !== this.view.none) found.push([keys[i], weights[i]]);
      } else {
        for (let i = 0; i < keys.length; i++) if (keys[i] === position) found.push([Math.floor(i / top), weights[i]]);
      }
    }
    return found;
  }
}

// ---- words and colours ----

const SIGNIFICANT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
export const percent = (weight) => `${SIGNIFICANT.format(100 * weight)} %`;
const number = (value) => SIGNIFICANT.format(value);
const visible = (token) =>
  token === "" ? "∅" : token.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length)).replace(/\n/g, "⏎").replace(/\t/g, "⇥");

const quoted = (token) => `“${visible(token)}”`;

// From nothing to most; luminance goes one way, so that they read the same to everyone.
const SCALES = {
  light: ["#ffffff", "#cfe1f2", "#7ab4d6", "#2b6fae", "#08306b"],
  dark: ["#10141c", "#1d3a63", "#5c6b73", "#b3a356", "#ffe873"],
};
const PALETTES = Object.fromEntries(
  Object.entries(SCALES).map(([theme, stops]) => {
    const channels = stops.map((stop) => [1, 3, 5].map((i) => parseInt(stop.slice(i, i + 2), 16)));
    const palette = new Uint8Array(256 * 3);
    for (let n = 0; n < 256; n++) {
      const at = (n / 255) * (stops.length - 1);
      const i = Math.min(stops.length - 2, Math.floor(at));
      for (let c = 0; c < 3; c++)
        palette[n * 3 + c] = Math.round(channels[i][c] + (at - i) * (channels[i + 1][c] - channels[i][c]));
    }
    return [theme, palette];
  }),
);
const shade = (value, most) => (most > 0 ? Math.min(255, Math.round(255 * Math.sqrt(Math.max(0, value) / most))) : 0);
const colour = (palette, n) => `rgb(${palette[3 * n]},${palette[3 * n + 1]},${palette[3 * n + 2]})`;

// Black or white: what can be read on a colour.
function ink(palette, n) {
  const [r, g, b] = [0, 1, 2].map((c) => palette[3 * n + c]);
  return 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#000" : "#fff";
}

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// A map as a picture of a pixel a cell.
function pixels(map, palette) {
  const canvas = make("canvas");
  canvas.width = Math.max(1, map.columns);
  canvas.height = Math.max(1, map.rows);
  const image = new ImageData(canvas.width, canvas.height);
  for (let i = 0; i < map.values.length; i++) {
    const n = shade(map.values[i], map.most);
    image.data[4 * i] = palette[3 * n];
    image.data[4 * i + 1] = palette[3 * n + 1];
    image.data[4 * i + 2] = palette[3 * n + 2];
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// A canvas of this size in CSS pixels, sharp on dense screens.
function sized(canvas, width, height) {
  const dense = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * dense));
  canvas.height = Math.max(1, Math.round(height * dense));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function download(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---- the view ----

const ROOM = 580; // CSS pixels that a map may be wide
const LINE = 15; // CSS pixels of a caption's line
const CELL = { most: 26, labelled: 11 }; // CSS pixels
const DETAIL = 40; // cells a side
const WHOLE_TABLE = 900; // cells
const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
const CHUNK = 100; // tokens that are laid out together
const GROUPS = {
  encoder: "Encoder",
  decoder: "Decoder, its own text",
  source: "Decoder, the source",
  self: "Attention",
};

class Page {
  constructor(root, data, linked) {
    this.root = root;
    this.data = data;
    this.linked = linked; // whether the address says what is shown
    this.heads = new Map();
    this.id = `glassformer-${Math.random().toString(36).slice(2)}`; // there may be several in a notebook
    this.state = { of: 0, at: "", head: 0, token: 0, side: "from" };
    root.classList.add("glassformer");
    this.system = window.matchMedia("(prefers-color-scheme: dark)");
    this.followSystem();
    this.build();
    this.readAddress();
    this.chooseHypothesis(this.state.of);
    if (linked) window.addEventListener("hashchange", () => this.readAddress() && this.chooseHypothesis(this.state.of));
    this.system.addEventListener("change", () => {
      this.followSystem();
      this.redraw();
    });
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (this.width !== undefined && this.width !== width) this.drawHead();
      this.width = width;
    }).observe(root);
  }

  followSystem() {
    this.root.dataset.theme = this.system.matches ? "dark" : "light";
  }

  get palette() {
    return PALETTES[this.root.dataset.theme];
  }

  get hypothesis() {
    return this.data.hypotheses[this.state.of];
  }

  get view() {
    return this.hypothesis.views.find((view) => view.path === this.state.at) ?? this.hypothesis.views[0];
  }

  get head() {
    return this.headOf(this.view, this.state.head);
  }

  headOf(view, n) {
    const key = `${this.state.of} ${view.path} ${n}`;
    if (!this.heads.has(key)) this.heads.set(key, new Head(view, n));
    return this.heads.get(key);
  }

  tokens(side) {
    return this.hypothesis.axes[side === "from" ? this.view.queries : this.view.keys];
  }

  // -- state --

  readAddress() {
    if (!this.linked) return false;
    const given = new URLSearchParams(location.hash.slice(1));
    const whole = (name) => Math.max(0, Math.floor(Number(given.get(name)) || 0));
    const before = JSON.stringify(this.state);
    this.state.of = Math.min(whole("of"), this.data.hypotheses.length - 1);
    this.state.at = given.get("at") ?? "";
    this.state.head = whole("head");
    this.state.token = whole("token");
    this.state.side = given.get("side") === "to" ? "to" : "from";
    this.settle();
    return before !== JSON.stringify(this.state);
  }

  // What is chosen is there.
  settle() {
    const { state } = this;
    if (!this.hypothesis.views.some((view) => view.path === state.at)) Object.assign(state, this.hypothesis.start);
    state.head = Math.min(state.head, this.view.heads.length - 1);
    state.token = Math.min(state.token, this.tokens(state.side).length - 1);
  }

  address() {
    return `#${new URLSearchParams(Object.entries(this.state).map(([name, value]) => [name, String(value)]))}`;
  }

  choose(change) {
    const before = { ...this.state };
    Object.assign(this.state, change);
    this.settle();
    if (this.linked) history.replaceState(null, "", this.address());
    if (before.at !== this.state.at || before.head !== this.state.head) {
      this.markOverview();
      this.drawHead();
    } else this.drawToken();
  }

  chooseHypothesis(n) {
    this.state.of = n;
    this.settle();
    if (this.picker) this.picker.value = String(n);
    this.drawOverview();
    this.drawHead();
    if (this.linked) history.replaceState(null, "", this.address());
  }

  redraw() {
    this.drawOverview();
    this.drawHead();
  }

  // -- what is there all the time --

  build() {
    const { data } = this;
    const button = (text, title, act) => make("button", { type: "button", title, onclick: act }, text);
    this.picker = null;
    if (data.hypotheses.length > 1) {
      const options = data.hypotheses.map((one, n) => make("option", { value: n }, `${n + 1}. ${one.label}`));
      this.picker = make("select", { onchange: () => this.chooseHypothesis(Number(this.picker.value)) }, ...options);
    }
    this.overview = make("nav", { class: "overview", "aria-label": "Layers and heads" });
    this.name = make("h2", { class: "name" });
    this.says = make("p", { class: "says" });
    this.figure = make("div", { class: "figure" });
    this.map = make("canvas", { class: "map", "aria-hidden": "true" });
    this.cross = make("canvas", {
      class: "cross",
      tabindex: 0,
      role: "img",
      "aria-roledescription": "map of attention weights",
      onpointermove: (event) => this.point(event, false),
      onpointerdown: (event) => this.point(event, true),
      onpointerleave: () => this.drawCross(),
      onkeydown: (event) => this.steer(event),
    });
    this.figure.append(this.map, this.cross);
    this.readout = make("p", { class: "readout", "aria-live": "polite" });
    this.detail = make("canvas", {
      class: "detail",
      tabindex: 0,
      role: "img",
      "aria-label": "The weights around the chosen token, one by one. Arrow keys move over them, Enter chooses a token.",
      onpointerdown: (event) => this.pick(event),
      onkeydown: (event) => this.steerDetail(event),
    });
    this.detailSays = make("p", { class: "says" });
    this.sides = make("fieldset", { class: "sides" }, make("legend", {}, "Show"));
    for (const [side, words] of [
      ["from", "where a token looks"],
      ["to", "who looks at a token"],
    ]) {
      const radio = make("input", {
        type: "radio",
        name: this.id,
        value: side,
        onchange: () => this.choose({ side, token: this.onOther(side) }),
      });
      this.sides.append(make("label", {}, radio, words));
    }
    this.texts = make("div", { class: "texts" });
    this.strips = make("div", { class: "strips" });
    this.table = make("details", { class: "table", ontoggle: () => this.drawTable() }, make("summary", {}, "As a table"));
    this.tableBody = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of weights" });
    this.table.append(this.tableBody);
    const tools = make(
      "div",
      { class: "tools" },
      button("PNG", "Save the map as a PNG picture", () => this.savePng()),
      button("SVG", "Save the map as an SVG picture", () => this.saveSvg()),
      this.linked ? button("Link", "Copy a link to what is shown", () => this.copyLink()) : null,
      button("Light or dark", "Change between light and dark", () => {
        this.root.dataset.theme = this.root.dataset.theme === "dark" ? "light" : "dark";
        this.redraw();
      }),
    );
    this.root.replaceChildren(
      make("header", {}, make("h1", {}, data.title), this.picker && make("label", { class: "hypotheses" }, "Hypothesis ", this.picker), tools),
      make(
        "div",
        { class: "columns" },
        this.overview,
        make(
          "section",
          { class: "one", "aria-label": "The chosen head" },
          this.name,
          make("div", { class: "scroll" }, this.figure),
          this.readout,
          this.says,
          make("div", { class: "scroll" }, this.detail),
          this.detailSays,
        ),
        make("section", { class: "words", "aria-label": "Tokens" }, this.sides, this.texts, this.strips, this.table),
      ),
    );
  }

  // The token to begin with when the other side is chosen: the same one where both sides are the same text.
  onOther(side) {
    if (side === this.state.side || this.view.queries === this.view.keys) return this.state.token;
    const line = this.head.line(this.state.side, this.state.token);
    return line.length ? line.reduce((a, b) => (b[1] > a[1] ? b : a))[0] : 0;
  }

  // -- layers x heads --

  drawOverview() {
    this.watching?.disconnect();
    this.watching = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        this.watching.unobserve(target);
        this.drawThumbnail(target);
      }
    });
    const parts = [];
    const groups = new Map();
    for (const view of this.hypothesis.views) groups.set(view.group, [...(groups.get(view.group) ?? []), view]);
    for (const [group, views] of groups) {
      const rows = views.map((view) => {
        const cells = view.heads.map((about, n) => {
          const label = `${GROUPS[group] ?? group}, layer ${view.layer}, head ${n}`;
          const matters = about.importance === undefined ? "" : `, without it the loss is ${number(about.importance)} higher`;
          const cell = make(
            "button",
            {
              type: "button",
              class: "cell",
              tabindex: -1,
              title: `${label}${about.role ? `: ${about.role}` : ""}${matters}`,
              "aria-label": `${label}${about.role ? `, ${about.role}` : ""}${matters}`,
              "data-at": view.path,
              "data-head": n,
              onclick: () => this.choose({ at: view.path, head: n }),
            },
            make("canvas", { "aria-hidden": "true" }),
            make("span", { class: "role" }, about.role ?? ""),
          );
          if (about.importance !== undefined) {
            const share = Math.max(0, about.importance) / (this.hypothesis.importance || 1);
            const bar = make("span", { class: "bar", "aria-hidden": "true" });
            bar.style.width = `${Math.round(100 * Math.sqrt(share))}%`;
            cell.append(bar);
          }
          this.watching.observe(cell);
          return cell;
        });
        if (!cells.length) cells.push(make("span", { class: "none" }, "no head is left"));
        return make("div", { class: "row" }, make("span", { class: "layer", title: view.path }, String(view.layer)), ...cells);
      });
      parts.push(make("h2", {}, GROUPS[group] ?? group), make("div", { class: "grid" }, ...rows));
    }
    if (this.hypothesis.importance !== undefined)
      parts.push(make("p", { class: "says" }, "Bar: how much the loss rises without the head, as a root; the longest is ", `${number(this.hypothesis.importance)} nats a token.`));
    this.overview.replaceChildren(...parts);
    this.overview.onkeydown = (event) => this.walk(event);
    this.markOverview();
  }

  drawThumbnail(cell) {
    const view = this.hypothesis.views.find((one) => one.path === cell.dataset.at);
    const { map } = this.headOf(view, Number(cell.dataset.head));
    if (!map) return;
    const canvas = cell.querySelector("canvas");
    const context = sized(canvas, 44, 44);
    context.imageSmoothingEnabled = map.rows > 44 || map.columns > 44;
    context.drawImage(pixels(map, this.palette), 0, 0, 44, 44);
  }

  markOverview() {
    for (const cell of this.overview.querySelectorAll(".cell")) {
      const chosen = cell.dataset.at === this.state.at && Number(cell.dataset.head) === this.state.head;
      cell.setAttribute("aria-pressed", String(chosen));
      cell.tabIndex = chosen ? 0 : -1;
    }
  }

  // Arrows go through the heads.
  walk(event) {
    const step = ARROWS[event.key];
    if (!step) return;
    const { views } = this.hypothesis;
    let layer = views.indexOf(this.view);
    let head = this.state.head + step[1];
    do layer += step[0];
    while (step[0] && views[layer] && !views[layer].heads.length);
    if (!views[layer] || head < 0) return;
    head = Math.min(head, views[layer].heads.length - 1);
    event.preventDefault();
    this.choose({ at: views[layer].path, head });
    this.overview.querySelector('[aria-pressed="true"]')?.focus();
  }

  // -- one head, large --

  drawHead() {
    const { view, state } = this;
    const about = view.heads[state.head] ?? {};
    const where = `${GROUPS[view.group] ?? view.group}, layer ${view.layer}, head ${state.head}`;
    this.name.replaceChildren(where, make("small", {}, [view.path, about.role].filter(Boolean).join(" · ")));
    this.cross.setAttribute("aria-label", `${where}. Arrow keys move over the map, Enter chooses a token.`);
    this.says.textContent = this.stated();
    this.layOut();
    if (this.texts.dataset.of !== this.textKey()) this.layOutTexts();
    this.drawStrips();
    this.drawToken();
  }

  stated() {
    const { view, head } = this;
    const parts = [];
    if (head.has("weights"))
      parts.push(`A row is a query, a column a key; the weights of a row sum to 100 %. ${view.precise}`);
    else if (head.has("tiles"))
      parts.push(
        `A cell is ${view.tile[0]} queries by ${view.tile[1]} keys: the share of a query's attention that falls on those keys, the queries' mean. Rows sum to 100 %.`,
      );
    else parts.push("No map was captured of this head.");
    if (head.map) parts.push(`Colour: the root of the weight, from 0 to ${percent(head.map.most)}, the head's largest.`);
    if (!head.has("weights") && head.has("top"))
      parts.push(`The ${view.facts.top.shape[2]} largest weights of each query are known; of any other, the most that it can be is said. ${view.precise}`);
    if (view.dropped) parts.push(`Left out for want of memory: ${view.dropped}.`);
    return parts.join(" ");
  }

  // Where the cells of the map are.
  layOut() {
    const { map } = this.head;
    this.figure.hidden = !map;
    if (!map) return;
    const room = Math.max(240, Math.min(ROOM, this.root.clientWidth - 40));
    const fine = map.tile[0] === 1 && map.tile[1] === 1;
    let size = Math.min(CELL.most, Math.floor(room / map.columns), Math.floor(900 / map.rows));
    const labels = fine && Math.min(CELL.most, Math.floor((room - 70) / map.columns)) >= CELL.labelled;
    const margin = labels ? 78 : 0;
    if (labels) size = Math.min(CELL.most, Math.floor((room - margin) / map.columns));
    const [width, height] = [Math.max(1, size), Math.max(1, size)].map((cell, i) => {
      const count = i ? map.rows : map.columns;
      return size >= 1 ? cell : room / count;
    });
    this.cells = { width, height, margin, labels, map };
    const [w, h] = [margin + width * map.columns, margin + height * map.rows];
    const context = sized(this.map, w, h);
    this.paint(context);
    sized(this.cross, w, h);
    this.figure.style.width = `${w}px`;
    this.figure.style.height = `${h}px`;
  }

  paint(context) {
    const { width, height, margin, labels, map } = this.cells;
    context.imageSmoothingEnabled = false;
    context.drawImage(pixels(map, this.palette), margin, margin, width * map.columns, height * map.rows);
    if (!labels) return;
    const style = getComputedStyle(this.root);
    context.fillStyle = style.getPropertyValue("--ink");
    context.font = `11px ${style.fontFamily}`;
    context.textBaseline = "middle";
    const short = (token) => ([...visible(token)].length > 11 ? `${[...visible(token)].slice(0, 10).join("")}…` : visible(token));
    context.textAlign = "right";
    this.tokens("from").forEach((token, i) => context.fillText(short(token), margin - 4, margin + (i + 0.5) * height));
    context.textAlign = "left";
    this.tokens("to").forEach((token, i) => {
      context.save();
      context.translate(margin + (i + 0.5) * width, margin - 4);
      context.rotate(-Math.PI / 2);
      context.fillText(short(token), 0, 0);
      context.restore();
    });
  }

  // The cell under the pointer, as [query, key].
  at(event) {
    const { width, height, margin, map } = this.cells;
    const column = Math.floor((event.offsetX - margin) / width);
    const row = Math.floor((event.offsetY - margin) / height);
    if (row >= map.rows || column >= map.columns || (row < 0 && column < 0)) return null;
    return [row * map.tile[0], column * map.tile[1]];
  }

  point(event, pressed) {
    const cell = this.at(event);
    if (!cell) return;
    const [q, k] = cell;
    if (pressed && k < 0) this.choose({ side: "from", token: q });
    else if (pressed && q < 0) this.choose({ side: "to", token: k });
    else if (pressed) {
      this.cursor = cell;
      this.choose({ token: this.state.side === "from" ? q : k });
    } else if (q >= 0 && k >= 0) this.drawCross(cell);
  }

  steer(event) {
    const step = ARROWS[event.key];
    const { map } = this.cells ?? {};
    if (!map) return;
    const [q, k] = this.cursor ?? [0, 0];
    if (step) {
      event.preventDefault();
      const within = (n, most) => Math.max(0, Math.min(most - 1, n));
      this.cursor = [within(q + step[0] * map.tile[0], this.head.queries), within(k + step[1] * map.tile[1], this.head.keys)];
      this.drawCross(this.cursor);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.choose({ token: this.state.side === "from" ? q : k });
    }
  }

  // Lines through a cell, and its number; without one, through the chosen token.
  drawCross(cell) {
    if (!this.cells || this.figure.hidden) return this.say(cell);
    const { width, height, margin, map } = this.cells;
    const context = this.cross.getContext("2d");
    context.clearRect(0, 0, this.cross.width, this.cross.height);
    context.strokeStyle = getComputedStyle(this.root).getPropertyValue("--accent");
    context.lineWidth = Math.min(width, height) < 6 ? 0.75 : 1.5;
    const row = (q) => context.strokeRect(margin, margin + Math.floor(q / map.tile[0]) * height, width * map.columns, height);
    const column = (k) => context.strokeRect(margin + Math.floor(k / map.tile[1]) * width, margin, width, height * map.rows);
    if (this.state.side === "from") row(this.state.token);
    else column(this.state.token);
    if (cell) {
      row(cell[0]);
      column(cell[1]);
    }
    this.say(cell);
  }

  say(cell) {
    this.readout.textContent = cell ? this.words(...cell) : this.summary();
  }

  words(q, k) {
    const { head } = this;
    const { map } = head;
    if (map && (map.tile[0] > 1 || map.tile[1] > 1)) {
      const [row, column] = [Math.floor(q / map.tile[0]), Math.floor(k / map.tile[1])];
      const last = [Math.min(head.queries, (row + 1) * map.tile[0]), Math.min(head.keys, (column + 1) * map.tile[1])];
      const share = percent(map.values[row * map.columns + column]);
      return `tokens ${row * map.tile[0]}–${last[0] - 1} → ${column * map.tile[1]}–${last[1] - 1}: ${share} of a query's attention, the mean`;
    }
    return this.pair(q, k);
  }

  pair(q, k) {
    const [from, to] = [this.tokens("from")[q], this.tokens("to")[k]].map(quoted);
    return `${from} → ${to}: ${this.weightWords(q, k)}`;
  }

  weightWords(q, k) {
    const { value, exact } = this.head.weight(q, k);
    return exact ? percent(value) : `at most ${percent(value)}`;
  }

  // Of the chosen token: its strongest ties.
  summary() {
    const { side, token } = this.state;
    const others = this.tokens(side === "from" ? "to" : "from");
    const line = this.head.line(side, token).filter(([, weight]) => weight > 0);
    const best = line.sort((a, b) => b[1] - a[1]).slice(0, 3).map(([n, weight]) => `${quoted(others[n])} ${percent(weight)}`);
    const words = side === "from" ? "looks at" : "is looked at by";
    return `${quoted(this.tokens(side)[token])} ${words} ${best.join(", ") || "nothing that is known"}`;
  }

  // -- the text --

  textKey() {
    return `${this.state.of} ${this.view.queries} ${this.view.keys}`;
  }

  layOutTexts() {
    const { view } = this;
    this.texts.dataset.of = this.textKey();
    this.chips = {};
    const sides = view.queries === view.keys ? ["both"] : ["from", "to"];
    const blocks = sides.map((side) => {
      const axis = side === "to" ? view.keys : view.queries;
      const list = make("div", { class: "tokens", role: "listbox", tabindex: 0, "aria-label": this.axisName(axis) });
      const chips = this.hypothesis.axes[axis].map((token, n) =>
        make("span", { class: "token", role: "option", "data-n": n, id: `${this.id}-${side}-${n}` }, visible(token)),
      );
      const grid = this.hypothesis.grids[axis];
      const lead = grid ? chips.length - grid[0] * grid[1] : chips.length;
      for (let first = 0; first < lead; first += CHUNK)
        list.append(make("div", { class: "chunk" }, ...chips.slice(first, Math.min(lead, first + CHUNK))));
      if (grid) {
        const patches = make("div", { class: "patches" }, ...chips.slice(lead));
        patches.style.gridTemplateColumns = `repeat(${grid[1]}, 1fr)`;
        list.append(patches);
      }
      list.addEventListener("click", (event) => {
        const chip = event.target.closest(".token");
        if (chip) this.choose({ side: side === "both" ? this.state.side : side, token: Number(chip.dataset.n) });
      });
      list.addEventListener("keydown", (event) => this.stepThrough(event, side, grid));
      for (const name of side === "both" ? ["from", "to"] : [side]) this.chips[name] = { list, chips };
      return make("div", {}, make("h3", {}, this.axisName(axis)), list);
    });
    this.texts.replaceChildren(...blocks);
    this.painted = [];
  }

  axisName(axis) {
    return { source: "Source", target: "Target", next: "Target", written: "What was written", tokens: "Tokens" }[axis] ?? axis;
  }

  stepThrough(event, side, grid) {
    const across = grid ? grid[1] : 1;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = side === "both" ? this.state.side : side;
    const from = at === this.state.side ? this.state.token + step : 0;
    if (from >= 0 && from < this.tokens(at).length) this.choose({ side: at, token: from });
    this.chips[at].chips[this.state.token].scrollIntoView({ block: "nearest" });
  }

  drawToken() {
    const { side, token } = this.state;
    for (const radio of this.sides.querySelectorAll("input")) radio.checked = radio.value === side;
    for (const chip of this.painted) {
      chip.removeAttribute("style");
      chip.removeAttribute("title");
      chip.removeAttribute("aria-selected");
      chip.classList.remove("chosen");
    }
    const other = side === "from" ? "to" : "from";
    const line = this.head.line(side, token);
    const most = line.reduce((a, [, weight]) => Math.max(a, weight), 0);
    const { palette } = this;
    this.painted = [];
    for (const [n, weight] of line) {
      const chip = this.chips[other].chips[n];
      const at = shade(weight, most);
      chip.style.background = colour(palette, at);
      chip.style.color = ink(palette, at);
      chip.title = percent(weight);
      this.painted.push(chip);
    }
    const { list, chips } = this.chips[side];
    const chosen = chips[token];
    chosen.classList.add("chosen");
    chosen.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", chosen.id);
    this.painted.push(chosen);
    this.drawCross();
    this.drawDetail();
    this.drawTable();
  }

  // -- around a token, where the map is too coarse to show it --

  drawDetail() {
    const { head, state } = this;
    const coarse = head.map && (head.map.tile[0] > 1 || head.map.tile[1] > 1) && head.has("top");
    this.detail.hidden = this.detailSays.hidden = !coarse;
    if (!coarse) return;
    const line = head.line(state.side, state.token);
    const best = line.length ? line.reduce((a, b) => (b[1] > a[1] ? b : a))[0] : 0;
    const [q, k] = state.side === "from" ? [state.token, best] : [best, state.token];
    const first = [
      [q, head.queries],
      [k, head.keys],
    ].map(([n, length]) => Math.max(0, Math.min(n - DETAIL / 2, length - DETAIL)));
    const size = Math.max(5, Math.floor(Math.min(400, this.root.clientWidth - 40) / DETAIL));
    const [rows, columns] = [Math.min(DETAIL, head.queries), Math.min(DETAIL, head.keys)];
    const lines = Array.from({ length: rows }, (_, row) =>
      head.line("from", first[0] + row).filter(([key]) => key >= first[1] && key < first[1] + columns),
    );
    const most = lines.flat().reduce((a, [, weight]) => Math.max(a, weight), 0);
    const context = sized(this.detail, columns * size, rows * size);
    const style = getComputedStyle(this.root);
    context.fillStyle = style.getPropertyValue("--unknown");
    context.fillRect(0, 0, columns * size, rows * size);
    lines.forEach((found, row) => {
      for (const [key, weight] of found) {
        context.fillStyle = colour(this.palette, shade(weight, most));
        context.fillRect((key - first[1]) * size, row * size, size, size);
      }
    });
    context.strokeStyle = style.getPropertyValue("--accent");
    context.strokeRect((k - first[1]) * size, (q - first[0]) * size, size, size);
    this.near = { first, size, rows, columns, at: [q, k] };
    this.detailSays.textContent =
      `Queries ${first[0]} to ${first[0] + rows - 1}, keys ${first[1]} to ${first[1] + columns - 1}, a token each; ` +
      `grey is not among the query's largest. Colour: the root of the weight, from 0 to ${percent(most)}. Marked: ${this.pair(q, k)}.`;
  }

  pick(event) {
    const { first, size } = this.near;
    const [q, k] = [first[0] + Math.floor(event.offsetY / size), first[1] + Math.floor(event.offsetX / size)];
    const words = this.pair(q, k);
    this.choose({ token: this.state.side === "from" ? q : k });
    this.readout.textContent = words;
  }

  steerDetail(event) {
    const step = ARROWS[event.key];
    const { first, rows, columns, at } = this.near;
    if (step) {
      event.preventDefault();
      const within = (n, least, count) => Math.max(least, Math.min(least + count - 1, n));
      this.near.at = [within(at[0] + step[0], first[0], rows), within(at[1] + step[1], first[1], columns)];
      this.readout.textContent = this.pair(...this.near.at);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.choose({ token: this.state.side === "from" ? at[0] : at[1] });
    }
  }

  // -- along the text --

  drawStrips() {
    this.strips.replaceChildren();
    for (const [name, side, title, unit] of [
      ["entropy", "from", "Entropy: how widely each query looks", "nats"],
      ["received", "to", "Received: what all queries together give each key", "queries' worth"],
    ]) {
      if (!this.head.has(name)) continue;
      const values = this.head.fact(name);
      const most = values.reduce((a, b) => Math.max(a, b), 0);
      const canvas = make("canvas", { class: "strip", role: "img", "aria-label": `${title}; at most ${number(most)} ${unit}` });
      const said = make("output", {}, `at most ${number(most)} ${unit}`);
      const place = (event) => Math.max(0, Math.min(values.length - 1, Math.floor((event.offsetX / canvas.clientWidth) * values.length)));
      canvas.addEventListener("pointermove", (event) => {
        const n = place(event);
        said.textContent = `${quoted(this.tokens(side)[n])}: ${number(values[n])} ${unit}`;
      });
      canvas.addEventListener("pointerdown", (event) => this.choose({ side, token: place(event) }));
      this.strips.append(make("div", { class: "along" }, make("h3", {}, title), said, canvas));
      const width = Math.max(200, this.strips.clientWidth);
      const context = sized(canvas, width, 44);
      context.fillStyle = getComputedStyle(this.root).getPropertyValue("--bars");
      const step = width / values.length;
      values.forEach((value, n) => {
        const height = most > 0 ? (42 * value) / most : 0;
        context.fillRect(n * step, 44 - height, Math.max(1, step - (step > 4 ? 1 : 0)), height);
      });
    }
  }

  // -- for those who don't see pictures --

  drawTable() {
    if (!this.table.open) return;
    const { head, state } = this;
    const [queries, keys] = [this.tokens("from"), this.tokens("to")];
    const headed = (words, scope) => make("th", { scope }, words);
    if (head.has("weights") && queries.length * keys.length <= WHOLE_TABLE) {
      const rows = queries.map((token, q) =>
        make("tr", {}, headed(visible(token), "row"), ...keys.map((_, k) => make("td", {}, percent(head.weight(q, k).value)))),
      );
      const top = make("tr", {}, headed("query \\ key", "col"), ...keys.map((token) => headed(visible(token), "col")));
      const caption = make("caption", {}, "Weights of every query (row) on every key (column)");
      this.tableBody.replaceChildren(make("table", {}, caption, make("thead", {}, top), make("tbody", {}, ...rows)));
      return;
    }
    const others = this.tokens(state.side === "from" ? "to" : "from");
    const line = head.line(state.side, state.token).sort((a, b) => b[1] - a[1]).slice(0, 200);
    const rows = line.map(([n, weight]) =>
      make("tr", {}, headed(visible(others[n]), "row"), make("td", {}, String(n)), make("td", {}, percent(weight))),
    );
    const caption = make("caption", {}, this.summary());
    const top = make("tr", {}, headed("token", "col"), headed("position", "col"), headed("weight", "col"));
    this.tableBody.replaceChildren(make("table", {}, caption, make("thead", {}, top), make("tbody", {}, ...rows)));
  }

  // -- to take away --

  fileName(ending) {
    return `attention-${this.state.at}-${this.state.head}.${ending}`.replace(/[^\w.-]+/g, "_");
  }

  // What the picture is and how it is normalised, in lines that fit below it.
  caption(width) {
    const most = Math.max(24, Math.floor(width / 6));
    const lines = [];
    for (const text of [`${this.data.title}: ${this.name.firstChild.textContent}`, this.stated()]) {
      let line = "";
      for (const word of text.split(" ")) {
        if (line && line.length + word.length >= most) {
          lines.push(line);
          line = "";
        }
        line += `${line && " "}${word}`;
      }
      lines.push(line);
    }
    return lines;
  }

  picture() {
    const { width, height, margin, map } = this.cells;
    const [w, h] = [Math.max(240, margin + width * map.columns), margin + height * map.rows];
    const lines = this.caption(w);
    const canvas = make("canvas");
    const context = sized(canvas, w, h + LINE * (lines.length + 1));
    const style = getComputedStyle(this.root);
    context.fillStyle = style.getPropertyValue("--paper");
    context.fillRect(0, 0, w, h + LINE * (lines.length + 1));
    this.paint(context);
    context.fillStyle = style.getPropertyValue("--ink");
    context.font = `11px ${style.fontFamily}`;
    context.textAlign = "left";
    lines.forEach((line, i) => context.fillText(line, 4, h + LINE * (i + 1)));
    return canvas;
  }

  savePng() {
    if (this.head.map) this.picture().toBlob((blob) => download(this.fileName("png"), blob));
  }

  svg() {
    const { width, height, margin, labels, map } = this.cells;
    const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
    const style = getComputedStyle(this.root);
    const [w, below] = [Math.max(240, margin + width * map.columns), margin + height * map.rows];
    const lines = this.caption(w);
    const h = below + LINE * (lines.length + 1);
    const parts = [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${h}" viewBox="0 0 ${w} ${h}" font-family="sans-serif" font-size="11">`,
      `<title>${escape(`${this.data.title}: ${this.name.firstChild.textContent}`)}</title>`,
      `<rect width="100%" height="100%" fill="${style.getPropertyValue("--paper").trim()}"/>`,
    ];
    map.values.forEach((value, i) => {
      const n = shade(value, map.most);
      const [x, y] = [margin + (i % map.columns) * width, margin + Math.floor(i / map.columns) * height];
      if (n) parts.push(`<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${colour(this.palette, n)}"/>`);
    });
    if (labels) {
      const fill = style.getPropertyValue("--ink").trim();
      this.tokens("from").forEach((token, i) =>
        parts.push(`<text x="${margin - 4}" y="${margin + (i + 0.5) * height + 4}" text-anchor="end" fill="${fill}">${escape(visible(token))}</text>`),
      );
      this.tokens("to").forEach((token, i) => {
        const x = margin + (i + 0.5) * width + 4;
        parts.push(`<text transform="translate(${x} ${margin - 4}) rotate(-90)" fill="${fill}">${escape(visible(token))}</text>`);
      });
    }
    const fill = style.getPropertyValue("--ink").trim();
    lines.forEach((line, i) => parts.push(`<text x="4" y="${below + LINE * (i + 1)}" fill="${fill}">${escape(line)}</text>`));
    return [...parts, "</svg>"].join("\n");
  }

  saveSvg() {
    if (this.head.map) download(this.fileName("svg"), new Blob([this.svg()], { type: "image/svg+xml" }));
  }

  async copyLink() {
    history.replaceState(null, "", this.address());
    try {
      await navigator.clipboard.writeText(location.href);
      this.readout.textContent = "The link is in the clipboard.";
    } catch {
      this.readout.textContent = `The address of this page is the link: ${location.href}`;
    }
  }
}

// Shows packed data (a Uint8Array) in an element. `linked`: the page's address says what is shown.
export async function show(root, packed, { linked = false } = {}) {
  return new Page(root, await unpack(packed), linked);
}

export function fromBase64(text) {
  const raw = atob(text.trim());
  return Uint8Array.from(raw, (c) => c.charCodeAt(0));
}

export default {
  async render({ model, el }) {
    const data = model.get("data");
    await show(el, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  },
};
