// Unpacks the data of a page, which packed.py and report.py write.

const FLOATS = new Float32Array(65536); // the number of each 16-bit code: 5 bits of exponent, 11 of fraction
for (let n = 1; n < 65536; n++) FLOATS[n] = 2 ** ((n >> 11) - 31) * (1 + (n & 2047) / 2048);

async function inflate(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Numbers lie in planes: first the lowest bytes of all, then the second ... `range` returns some of them. The relative
// error of a number is at most `error`, unless it is below `least`.
class Numbers {
  constructor(bytes, { offset, count, type, scale, shape }) {
    Object.assign(this, { bytes, offset, count, type, scale, shape });
    this.width = { f4: 4, u4: 4, p2: 2, u2: 2 }[type];
    this.error = type === "p2" ? 2 ** -12 + 2 ** -20 : 2 ** -20;
    this.least = type === "p2" ? scale * 2 ** -31 : 0;
  }

  range(start, length) {
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
    return this.range(n * length, length);
  }
}

export async function unpack(packed) {
  const bytes = await inflate(packed);
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const body = bytes.subarray(4 + length);
  for (const { views, images } of header.hypotheses)
    for (const stored of [images, ...views.map((view) => view.facts)])
      for (const name in stored) stored[name] = new Numbers(body, stored[name]);
  return header;
}

export function fromBase64(text) {
  const raw = atob(text.trim());
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i); // Uint8Array.from takes twenty times as long
  return bytes;
}

// The facts along the text: name, side whose positions they have, title, unit.
export const ALONG = [
  ["entropy", "from", "Entropy: how widely each query looks", "nats"],
  ["received", "to", "Received: the sum of all queries' weights on each key", "total weight"],
];

// One head of one attention, its numbers decoded when first asked for.
export class Head {
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

  // What is drawn: weights, or for tiles the mean share of a query's attention on the tile's keys.
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

  // Whether a cell of the map holds several weights.
  get coarse() {
    return this.has("tiles") && !this.has("weights");
  }

  // The weight of query q on key k if it is known, else an upper bound.
  weight(q, k) {
    if (this.has("weights")) return { value: this.fact("weights")[q * this.keys + k], exact: true };
    const { top, tiles } = this.view.facts;
    const most = [1];
    let inTile = 0; // sum of the query's known weights in the tile, at least
    if (top) {
      const count = top.shape[2];
      const [keys, weights] = [this.fact("keys"), this.fact("top")];
      let sum = 0;
      for (let i = q * count; i < (q + 1) * count; i++) {
        if (keys[i] === k) return { value: weights[i], exact: true };
        if (keys[i] === this.view.none) return { value: 0, exact: true }; // fewer than `count` are above zero
        const known = weights[i] * (1 - top.error);
        sum += known;
        if (this.view.tile && this.sameTile(keys[i], k)) inTile += known;
      }
      most.push(weights[(q + 1) * count - 1] * (1 + top.error) + top.least, 1 - sum);
    }
    if (tiles) {
      const [height, width] = this.view.tile;
      const place = Math.floor(q / height) * tiles.shape[2] + Math.floor(k / width);
      most.push(this.fact("tiles")[place] * (1 + tiles.error) + tiles.least - inTile);
    }
    return { value: Math.max(0, Math.min(...most)), exact: false };
  }

  sameTile(a, b) {
    return Math.floor(a / this.view.tile[1]) === Math.floor(b / this.view.tile[1]);
  }

  // Known weights [position, weight] of a query over keys ("from"), or of a key over queries ("to").
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

  // The position of the largest known weight of a query, or key.
  best(side, position) {
    const line = this.line(side, position);
    return line.length ? line.reduce((a, b) => (b[1] > a[1] ? b : a))[0] : 0;
  }
}
