// Saves a head's map as PNG or SVG, with the tokens beside it and an explanation below.
//
// A drawing has `cells` (width, height, margin, map), `labels` ([text, x, y, turned], x and y in CSS pixels; turned ones
// read upwards), `says` (what it is), `palette`, `paper`, `ink` and `font`.
import { colour, make, pixels, shade, short, sized } from "./drawing.js";

const LINE = 18; // CSS pixels of a caption's line
const APART = 10_000; // cells beyond which an SVG holds pixels
const NARROWEST = 240;

// Tokens beside the map.
export function labelsOf({ width, height, margin }, queries, keys) {
  return [
    ...queries.map((token, i) => [short(token), margin - 4, margin + (i + 0.5) * height, false]),
    ...keys.map((token, i) => [short(token), margin + (i + 0.5) * width, margin - 4, true]),
  ];
}

// The width of the widest of some texts, in CSS pixels.
export function widest(texts, font) {
  const context = make("canvas").getContext("2d");
  context.font = font;
  return Math.ceil(Math.max(0, ...texts.map((text) => context.measureText(text).width)));
}

export function paint(context, { cells, labels, palette, ink, font }) {
  const { width, height, margin, map } = cells;
  context.imageSmoothingEnabled = false;
  context.drawImage(pixels(map, palette), margin, margin, width * map.columns, height * map.rows);
  context.fillStyle = ink;
  context.font = font;
  context.textBaseline = "middle";
  for (const [text, x, y, turned] of labels) {
    context.save();
    context.translate(x, y);
    if (turned) context.rotate(-Math.PI / 2);
    context.textAlign = turned ? "left" : "right";
    context.fillText(text, 0, 0);
    context.restore();
  }
}

// Break texts into lines of at most this width; words that are too long are broken anywhere.
function wrapped(texts, width, font) {
  const context = make("canvas").getContext("2d");
  context.font = font;
  const fits = (line) => context.measureText(line).width <= width;
  const lines = [];
  for (const text of texts) {
    let line = "";
    for (const word of text.split(/(?<= )/)) {
      if (line && !fits(line + word.trimEnd())) {
        lines.push(line.trimEnd());
        line = "";
      }
      for (const letter of word) {
        if (line && !fits(line + letter) && letter !== " ") {
          lines.push(line);
          line = "";
        }
        line += letter;
      }
    }
    lines.push(line.trimEnd());
  }
  return lines;
}

function frame({ cells, says, font }) {
  const { width, height, margin, map } = cells;
  const [w, below] = [Math.max(NARROWEST, margin + width * map.columns), margin + height * map.rows];
  const lines = wrapped(says, w - 8, font);
  return { w, h: below + LINE * (lines.length + 1), lines: lines.map((line, i) => [line, below + LINE * (i + 1)]) };
}

// A canvas.
export function picture(drawing) {
  const { w, h, lines } = frame(drawing);
  const canvas = make("canvas");
  const context = sized(canvas, w, h);
  context.fillStyle = drawing.paper;
  context.fillRect(0, 0, w, h);
  paint(context, drawing);
  context.textAlign = "left";
  for (const [line, y] of lines) context.fillText(line, 4, y);
  return canvas;
}

// The text of an SVG file.
export function svg(drawing) {
  const { cells, labels, says, palette, paper, ink } = drawing;
  const { width, height, margin, map } = cells;
  const { w, h, lines } = frame(drawing);
  const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${h}" viewBox="0 0 ${w} ${h}" font-family="sans-serif" font-size="${cells.letters}">`,
    `<title>${escape(says[0])}</title>`,
    `<rect width="100%" height="100%" fill="${paper}"/>`,
  ];
  if (map.values.length > APART) {
    const size = `width="${width * map.columns}" height="${height * map.rows}" preserveAspectRatio="none"`;
    const place = `x="${margin}" y="${margin}" style="image-rendering: pixelated"`;
    parts.push(`<image ${place} ${size} href="${pixels(map, palette).toDataURL()}"/>`);
  } else
    map.values.forEach((value, i) => {
      const n = shade(value, map.most);
      const [x, y] = [margin + (i % map.columns) * width, margin + Math.floor(i / map.columns) * height];
      if (n) parts.push(`<rect x="${x}" y="${y}" width="${width}" height="${height}" fill="${colour(palette, n)}"/>`);
    });
  for (const [text, x, y, turned] of labels) {
    const place = turned ? `transform="translate(${x + 4} ${y}) rotate(-90)"` : `x="${x}" y="${y + 4}" text-anchor="end"`;
    parts.push(`<text ${place} fill="${ink}">${escape(text)}</text>`);
  }
  for (const [line, y] of lines) parts.push(`<text x="4" y="${y}" fill="${ink}">${escape(line)}</text>`);
  return [...parts, "</svg>"].join("\n");
}

export function download(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
