// Shows attention inside an element: in a page of its own (show) or in a notebook (the default export, for anywidget).
// No library, no network. Tokens only ever become text nodes and attributes.
import { Chosen } from "./chosen.js";
import { unpack } from "./data.js";
import { Detail } from "./detail.js";
import { make, visible } from "./drawing.js";
import { HeadMap } from "./map.js";
import { Overview } from "./overview.js";
import { download, picture, svg } from "./saving.js";
import { Strips } from "./strips.js";
import { Table } from "./table.js";
import { Texts } from "./texts.js";
import { ENGLISH } from "./words.js";

// Holds what is chosen and the parts that show it.
class Page extends Chosen {
  constructor(root, data, linked) {
    super(root, data, ENGLISH);
    this.linked = linked; // whether the address says what is shown
    this.id = `glassformer-${Math.random().toString(36).slice(2)}`; // there may be several in a notebook
    this.listening = new AbortController();
    root.classList.add("glassformer");
    this.build();
    this.followTheme();
    this.readAddress();
    this.chooseHypothesis(this.state.of);
    if (linked) this.listen(window, "hashchange", () => this.readAddress() && this.chooseHypothesis(this.state.of));
    this.resizing = new ResizeObserver(() => this.map.drawnAt !== root.clientWidth && this.resize());
    this.resizing.observe(root);
  }

  listen(target, name, act) {
    target.addEventListener(name, act, { signal: this.listening.signal });
  }

  // Jupyter's theme, else the system's, until the button is used.
  followTheme() {
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    const light = document.body.dataset.jpThemeLight;
    this.root.dataset.theme = (light === undefined ? system.matches : light === "false") ? "dark" : "light";
    this.listen(system, "change", () => {
      if (this.hasOwnTheme) return;
      if (light === undefined) this.root.dataset.theme = system.matches ? "dark" : "light";
      this.redraw();
    });
  }

  // Stop listening; only the elements stay.
  destroy() {
    this.listening.abort();
    this.resizing.disconnect();
    this.strips.resizing.disconnect();
    this.overview.watching?.disconnect();
  }

  // -- what is chosen --

  readAddress() {
    if (!this.linked) return false;
    const given = new URLSearchParams(location.hash.slice(1));
    const whole = (name) => Math.max(0, Math.floor(Number(given.get(name)) || 0));
    const before = JSON.stringify(this.state);
    this.state.of = Math.min(whole("of"), this.data.hypotheses.length - 1);
    this.state.at = given.get("at") ?? "";
    this.state.head = whole("head");
    this.state.token = given.has("token") ? whole("token") : -1;
    this.state.side = given.get("side") === "to" ? "to" : "from";
    this.settle();
    return before !== JSON.stringify(this.state);
  }

  address() {
    return `#${new URLSearchParams(Object.entries(this.state).map(([name, value]) => [name, String(value)]))}`;
  }

  // Write the state into the page's address. A page inside another may have no address to change.
  keepAddress() {
    try {
      if (this.linked) history.replaceState(null, "", this.address());
    } catch {
      this.linked = false;
    }
  }

  choose(change) {
    const before = { ...this.state };
    Object.assign(this.state, change);
    this.settle();
    this.keepAddress();
    if (before.at !== this.state.at || before.head !== this.state.head) {
      this.overview.mark();
      this.drawHead();
    } else this.drawToken();
  }

  chooseHypothesis(n) {
    this.state.of = n;
    this.settle();
    if (this.picker) this.picker.value = String(n);
    this.redraw();
    this.keepAddress();
  }

  // -- what is shown --

  build() {
    const { data } = this;
    const button = (text, title, act) => make("button", { type: "button", title, onclick: act }, text);
    if (data.hypotheses.length > 1) {
      const options = data.hypotheses.map((one, n) => make("option", { value: n }, `${n + 1}. ${one.label}`));
      this.picker = make("select", { onchange: () => this.chooseHypothesis(Number(this.picker.value)) }, ...options);
    }
    this.overview = new Overview(this);
    this.map = new HeadMap(this);
    this.detail = new Detail(this);
    this.texts = new Texts(this);
    this.strips = new Strips(this);
    this.table = new Table(this);
    this.title = make("h2", { class: "name" });
    this.readout = make("p", { class: "readout", "aria-live": "polite" });
    this.savers = [
      button("PNG", "Save the map as a PNG picture", () => this.savePng()),
      button("SVG", "Save the map as an SVG picture", () => this.saveSvg()),
    ];
    const theme = button("Theme", "Change between light and dark", () => {
      this.hasOwnTheme = true;
      this.root.dataset.theme = this.root.dataset.theme === "dark" ? "light" : "dark";
      this.redraw();
    });
    const link = this.linked ? button("Link", "Copy a link to what is shown", () => this.copyLink()) : null;
    const picker = this.picker && make("label", { class: "hypotheses" }, "Hypothesis ", this.picker);
    const pictured = data.hypotheses.some(({ grids }) => Object.keys(grids).length); // an image stands beside the map
    const reader = [make("div", { class: "choices" }, picker, this.texts.sides), pictured ? null : this.texts.element];
    const one = [this.title, this.map.element, this.readout, this.map.says, this.detail.element];
    const words = [pictured ? this.texts.element : null, this.strips.element, this.table.element];
    this.root.replaceChildren(
      make("header", {}, make("h1", { dir: "auto" }, visible(data.title)), make("div", { class: "tools" }, ...this.savers, link, theme)),
      make("section", { class: "reader", "aria-label": "Tokens" }, ...reader),
      make(
        "div",
        { class: "columns" },
        this.overview.element,
        make("section", { class: "one", "aria-label": "The chosen head" }, ...one),
        make("section", { class: "words", "aria-label": "Along the text" }, ...words),
      ),
    );
  }

  redraw() {
    this.overview.draw();
    this.drawHead();
  }

  drawHead() {
    const { role } = this.view.heads[this.state.head];
    this.title.replaceChildren(this.name, make("small", {}, [this.view.path, role].filter(Boolean).join(" · ")));
    for (const saver of this.savers) saver.disabled = !this.head.map;
    this.map.draw();
    this.texts.layOut();
    this.strips.draw();
    this.drawToken();
  }

  // Draw again for a new width. The strips watch their own.
  resize() {
    const { pinned } = this.map;
    this.map.draw();
    this.map.pin(pinned);
    this.detail.draw();
  }

  drawToken() {
    this.texts.draw();
    this.map.pin(null);
    this.detail.draw();
    this.strips.mark();
    this.table.draw();
    this.texts.reveal(); // last, because asking for positions forces a layout
    this.overview.reveal();
  }

  // -- words --

  say(words) {
    this.readout.textContent = words;
  }

  // -- to take away --

  fileName(ending) {
    return `attention-${this.state.at}-${this.view.mean ? "mean" : this.state.head}.${ending}`;
  }

  savePng() {
    picture(this.map.drawing()).toBlob((blob) => download(this.fileName("png"), blob));
  }

  saveSvg() {
    download(this.fileName("svg"), new Blob([svg(this.map.drawing())], { type: "image/svg+xml" }));
  }

  async copyLink() {
    this.keepAddress();
    try {
      await navigator.clipboard.writeText(location.href);
      this.say("The link was copied to the clipboard.");
    } catch {
      this.say(`Copying failed. The link is the address of this page: ${location.href}`);
    }
  }
}

// Shows packed data (a Uint8Array) in an element. `linked`: the page's address says what is shown.
export async function show(root, packed, { linked = false } = {}) {
  return new Page(root, await unpack(packed), linked);
}

export default {
  async render({ model, el }) {
    let page;
    let newest = 0;
    const draw = async () => {
      const mine = ++newest;
      const { buffer, byteOffset, byteLength } = model.get("data");
      const data = await unpack(new Uint8Array(buffer, byteOffset, byteLength));
      if (mine !== newest) return; // there is newer data
      page?.destroy();
      page = new Page(el, data, false);
    };
    model.on("change:data", draw);
    await draw();
    return () => {
      newest++;
      model.off("change:data", draw);
      page?.destroy();
    };
  },
};
