// Words for numbers and tokens, colours, and functions that make elements and pictures.

const SIGNIFICANT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const UP = new Intl.NumberFormat("en", { maximumSignificantDigits: 3, roundingMode: "ceil" });
export const number = (value) => SIGNIFICANT.format(value);
export const percent = (weight) => `${SIGNIFICANT.format(100 * weight)} %`;
export const atMost = (weight) => `at most ${UP.format(100 * weight)} %`;

// Characters that are invisible or change the direction of the text after them.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff]/g;

// A space at an end of a token, or SentencePiece's mark of one (U+2581), is shown as ␣.
export function visible(token) {
  if (token === "") return "∅";
  return token
    .replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length))
    .replace(/\u2581/g, "␣")
    .replace(/\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(HIDDEN, (c) => `⟨${c.charCodeAt(0).toString(16).padStart(4, "0")}⟩`);
}

// A token beside a map: at most 14 letters.
export function short(token) {
  const letters = [...visible(token)];
  return letters.length > 14 ? `${letters.slice(0, 13).join("")}…` : letters.join("");
}

// A token in a list, its marks of spaces thinner than its letters.
export const marked = (token) =>
  visible(token)
    .split(/(␣)/)
    .map((part) => (part === "␣" ? make("span", { class: "space" }, part) : part));

// A token in a sentence, isolated so that its writing direction doesn't change the rest (Unicode's isolates).
export const quoted = (token) => `“\u2068${visible(token)}\u2069”`;

// Colours from zero to the largest weight. Luminance changes in one direction, so colour-blind readers see the same order.
const SCALES = {
  light: ["#ffffff", "#cfe1f2", "#7ab4d6", "#2b6fae", "#08306b"],
  dark: ["#10141c", "#1d3a63", "#5c6b73", "#b3a356", "#ffe873"],
};
export const PALETTES = Object.fromEntries(
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
export const shade = (value, most) =>
  most > 0 ? Math.min(255, Math.round(255 * Math.sqrt(Math.max(0, value) / most))) : 0;
export const colour = (palette, n) => `rgb(${palette[3 * n]},${palette[3 * n + 1]},${palette[3 * n + 2]})`;

// Black or white, whichever can be read on a colour (WCAG 2.2: contrast is never below 4.5 to 1).
export function ink(palette, n) {
  const [r, g, b] = [0, 1, 2].map((c) => {
    const share = palette[3 * n + c] / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

export function make(tag, properties = {}, ...children) {
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

// A map as a picture with one pixel for each cell.
export function pixels(map, palette) {
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
export function sized(canvas, width, height) {
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

// Scroll a box, and nothing around it, until one of its elements is seen.
export function reveal(box, element) {
  const [outer, inner] = [box.getBoundingClientRect(), element.getBoundingClientRect()];
  if (inner.top < outer.top || inner.bottom > outer.bottom)
    box.scrollTop += (inner.top + inner.bottom - outer.top - outer.bottom) / 2;
}

export const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
export const isEnter = (event) => event.key === "Enter" || event.key === " ";
export const within = (n, least, most) => Math.max(least, Math.min(most, n));
