// Bars along the text: the entropy of each query, and what each key receives.
import { ALONG } from "./data.js";
import { make, number, quoted, sized, within } from "./drawing.js";

const HEIGHT = 140; // CSS pixels
const STEPS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10, Home: -Infinity, End: Infinity };

export class Strips {
  constructor(page) {
    this.page = page;
    this.element = make("div", { class: "strips" });
    this.width = 300; // CSS pixels
    this.resizing = new ResizeObserver(([entry]) => {
      const width = Math.max(200, Math.floor(entry.contentRect.width));
      if (width === this.width) return;
      this.width = width;
      this.mark();
    });
    this.resizing.observe(this.element);
  }

  // Draw the bars of the chosen head.
  draw() {
    const { head } = this.page;
    this.strips = ALONG.filter(([name]) => head.has(name)).map((kind) => this.strip(...kind));
    this.element.replaceChildren(...this.strips.map(({ element }) => element));
  }

  strip(name, side, title, unit) {
    const { page } = this;
    const values = page.head.fact(name);
    const most = values.reduce((a, b) => Math.max(a, b), 0);
    const said = (n) => `${quoted(page.tokens(side)[n])}: ${number(values[n])} ${unit} (the largest: ${number(most)})`;
    const output = make("output");
    const canvas = make("canvas", {
      class: "strip",
      tabindex: 0,
      role: "slider",
      "aria-label": title,
      "aria-valuemin": 0,
      "aria-valuemax": values.length - 1,
    });
    const strip = { element: make("div", { class: "along" }, make("h3", {}, title), output, canvas), canvas, output, values, side, most, said };
    const place = (event) => within(Math.floor((event.offsetX / canvas.clientWidth) * values.length), 0, values.length - 1);
    canvas.addEventListener("pointermove", (event) => (output.textContent = said(place(event))));
    canvas.addEventListener("pointerleave", () => (output.textContent = said(this.at(strip))));
    canvas.addEventListener("pointerdown", (event) => page.choose({ side, token: place(event) }));
    canvas.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      if (!step) return;
      event.preventDefault();
      page.choose({ side, token: within(this.at(strip) + step, 0, values.length - 1) });
    });
    return strip;
  }

  // The marked position of a strip: the chosen token, or where its largest weight is.
  at({ side }) {
    return this.page.cell[side === "from" ? 0 : 1];
  }

  // Mark the chosen token.
  mark() {
    for (const strip of this.strips) {
      const { canvas, values, most } = strip;
      const at = this.at(strip);
      const context = sized(canvas, this.width, HEIGHT);
      const step = this.width / values.length;
      const bar = (n, least) => {
        const height = most > 0 ? ((HEIGHT - 2) * values[n]) / most : 0;
        context.fillRect(n * step, HEIGHT - height, Math.max(least, step - (step > 4 ? 1 : 0)), height);
      };
      context.fillStyle = this.page.style("--bars");
      for (let n = 0; n < values.length; n++) bar(n, 1);
      context.clearRect(at * step, 0, Math.max(2, step), HEIGHT);
      context.fillStyle = this.page.style("--accent");
      bar(at, 2);
      strip.output.textContent = strip.side === this.page.state.side ? strip.said(at) : `largest weight: ${strip.said(at)}`;
      canvas.setAttribute("aria-valuenow", at);
      canvas.setAttribute("aria-valuetext", strip.said(at));
    }
  }
}
