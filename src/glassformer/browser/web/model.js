// A model's graphs in onnxruntime: the encoder, and the decoder a token at a time with a cache of keys and values.

const PAST = "past_key_values.";
const ATTENTION = "cross_attentions.";

export class Model {
  // `ort` is onnxruntime's module, `sizes` the model's config.json; the sessions are those of the two graphs.
  constructor(ort, encoder, decoder, sizes) {
    Object.assign(this, { ort, encoder, decoder });
    this.eos = sizes.eos_token_id;
    this.pad = sizes.decoder_start_token_id; // with which every target begins, and which is never written
    this.classes = decoder.outputMetadata.find(({ name }) => name === "logits").shape[2];
    this.pasts = decoder.inputMetadata.filter(({ name }) => name.startsWith(PAST));
    this.attentions = decoder.outputNames.filter((name) => name.startsWith(ATTENTION));
  }

  // Load the graphs from their bytes; `providers` are onnxruntime's names of what may compute.
  static async load(ort, encoder, decoder, sizes, providers) {
    const open = (bytes) => ort.InferenceSession.create(bytes, { executionProviders: providers, logSeverityLevel: 3 });
    return new Model(ort, await open(encoder), await open(decoder), sizes);
  }

  async release() {
    await this.encoder.release();
    await this.decoder.release();
  }

  // Read a source, whose ids end with `</s>`; return the cache with which its one hypothesis begins.
  async start(source) {
    const mask = this.integers([source.map(() => 1)]);
    const { last_hidden_state: hidden } = await this.encoder.run({ input_ids: this.integers([source]), attention_mask: mask });
    return new Cache(this.ort, hidden, mask, this.pasts);
  }

  // Return the logits after each token of the rows, which are added to the cache.
  async step(rows, cache) {
    return (await this.run(rows, cache, [])).logits.data;
  }

  // Return the weights with which each of these tokens of a target looked at the source: of each { layer, heads, values },
  // values a table (queries, keys) for each head.
  async attention(source, tokens) {
    const cache = await this.start(source);
    const found = await this.run([[this.pad, ...tokens.slice(0, -1)]], cache, this.attentions);
    const layer = (name) => ({ layer: Number(name.slice(ATTENTION.length)), heads: found[name].dims[1], values: found[name].data });
    return this.attentions.map(layer);
  }

  async run(rows, cache, wanted) {
    const feeds = { input_ids: this.integers(rows), ...cache.feeds() };
    const fetches = ["logits", ...cache.wanted(), ...wanted];
    const found = await this.decoder.run(feeds, fetches);
    cache.keep(found);
    return found;
  }

  integers(rows) {
    const data = BigInt64Array.from(rows.flat(), BigInt);
    return new this.ort.Tensor("int64", data, [rows.length, rows[0].length]);
  }
}

// Keys and values of every decoder layer: the source's, the same for every row, and those of the tokens that were written.
class Cache {
  constructor(ort, hidden, mask, pasts) {
    Object.assign(this, { ort, pasts, rows: 1 });
    this.source = { encoder_hidden_states: hidden, encoder_attention_mask: mask };
    this.own = {}; // of the target's tokens
    for (const { name, type, shape } of pasts) {
      const empty = new ort.Tensor(type, new (arrayOf(type))(0), [1, shape[1], 0, shape[3]]);
      (isOfSource(name) ? this.source : this.own)[name] = empty;
    }
  }

  feeds() {
    return { ...this.expanded, ...this.own };
  }

  // What the source is to each row.
  get expanded() {
    if (this.laidOut?.rows !== this.rows) {
      const repeated = Object.entries(this.source).map(([name, tensor]) => [name, this.gather(tensor, new Array(this.rows).fill(0))]);
      this.laidOut = { rows: this.rows, tensors: Object.fromEntries(repeated) };
    }
    return this.laidOut.tensors;
  }

  // The outputs to keep: those of the source only once.
  wanted() {
    const names = Object.keys(this.own);
    return [...names, ...(this.isRead ? [] : Object.keys(this.source).filter((name) => name.startsWith(PAST)))].map(present);
  }

  keep(found) {
    for (const name in this.own) this.own[name] = found[present(name)];
    if (this.isRead) return;
    for (const name in this.source) if (name.startsWith(PAST)) this.source[name] = found[present(name)];
    this.laidOut = null;
    this.isRead = true;
  }

  // Let row n go on from what row parents[n] has written.
  branch(parents) {
    if (parents.length === this.rows && parents.every((parent, n) => parent === n)) return;
    for (const name in this.own) this.own[name] = this.gather(this.own[name], parents);
    this.rows = parents.length;
  }

  gather(tensor, rows) {
    const { data, dims, type } = tensor;
    if (rows.length === 1 && dims[0] === 1) return tensor;
    const each = data.length / dims[0];
    const gathered = new data.constructor(each * rows.length);
    rows.forEach((row, n) => gathered.set(data.subarray(row * each, (row + 1) * each), n * each));
    return new this.ort.Tensor(type, gathered, [rows.length, ...dims.slice(1)]);
  }
}

const present = (past) => past.replace(PAST, "present.");
const isOfSource = (name) => name.includes(".encoder.");
const arrayOf = (type) => (type === "float16" ? Uint16Array : Float32Array);
