// Answers as the server's api does (serve/web/api.js), from a model in a worker of this page.
import { ApiError } from "../../page/translator/errors.js";

const MANIFEST = "glassformer.json";

export class LocalApi {
  // `base` is the folder of the page.
  constructor(base) {
    this.base = base;
    this.changed = () => {}; // called when more of the model has come: { done, total }, or null once it is there
    this.asked = new Map();
    this.count = 0;
  }

  // The run that there is. Its model is loaded meanwhile.
  async runs() {
    const { run } = await this.described();
    this.ready().catch(() => {}); // who asks for a translation is told
    return [run];
  }

  // What the folder holds. Where that could not be loaded it is tried again.
  async described() {
    this.manifest ??= fetchJson(new URL(MANIFEST, this.base));
    try {
      return await this.manifest;
    } catch (error) {
      this.manifest = null;
      throw error;
    }
  }

  // Wait until the model is loaded. Where that failed it is tried again.
  ready() {
    this.loading ??= this.load();
    return this.loading;
  }

  async load() {
    try {
      const manifest = await this.described();
      this.start();
      for await (const news of this.events("load", { base: this.base, manifest })) {
        if (news.event) this.changed(news.event);
        else Object.assign(manifest.run, news.done);
      }
    } catch (error) {
      this.loading = null;
      throw error;
    } finally {
      this.changed(null);
    }
  }

  // Start a worker, in the place of one that failed.
  start() {
    this.worker?.terminate();
    for (const told of [...this.asked.values()]) told({ error: { code: "broken", message: "the worker was ended" } });
    this.worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.worker.onmessage = ({ data }) => this.asked.get(data.id)?.(data);
    this.worker.onerror = ({ message }) => {
      for (const told of this.asked.values()) told({ error: { code: "broken", message: message ?? "the worker could not start" } });
    };
  }

  most(name, number) {
    return number;
  }

  async translate({ q, prefixes, ...settings }) {
    const lines = [];
    for (const [n, line] of [q].flat().entries()) lines.push(await this.ask("translate", { q: line, prefix: prefixes?.[n], ...settings }));
    return { lines };
  }

  async alternatives(wanted) {
    return { alternatives: await this.ask("alternatives", wanted) };
  }

  async attention({ q, pieces }) {
    const data = await this.ask("attention", { q, pieces: pieces.map(({ piece }) => piece) });
    for (const { facts } of data.hypotheses.flatMap(({ views }) => views)) facts.weights = new Weights(facts.weights);
    return data;
  }

  // Yields [name, data] of the events of a translation that is written.
  async *stream({ q }, signal) {
    await this.ready();
    for await (const { event, done } of this.events("stream", { q }, signal)) {
      if (done) yield ["done", { lines: [done] }];
      else yield ["piece", { text: event }];
    }
  }

  async ask(kind, wanted) {
    await this.ready();
    for await (const { done } of this.events(kind, wanted)) if (done) return done;
    throw new ApiError("broken");
  }

  // Yields what the worker tells of a request until it is done.
  async *events(kind, wanted, signal) {
    const { worker } = this;
    const id = ++this.count;
    const [come, waiting] = [[], []];
    this.asked.set(id, (news) => (waiting.length ? waiting.shift()(news) : come.push(news)));
    const leave = () => worker.postMessage({ id, kind: "leave" });
    signal?.addEventListener("abort", leave);
    if (signal?.aborted) leave(); // while the model was loading
    worker.postMessage({ id, kind, ...wanted });
    try {
      for (;;) {
        const news = come.length ? come.shift() : await new Promise((resolve) => waiting.push(resolve));
        if (news.error?.code === "broken" && worker === this.worker) this.loading = null; // the next request starts another worker
        if (news.error) throw new ApiError(news.error.code, news.error.message);
        yield news;
        if (news.done) return;
      }
    } finally {
      this.asked.delete(id);
      signal?.removeEventListener("abort", leave);
    }
  }
}

async function fetchJson(address) {
  let response;
  try {
    response = await fetch(address, { cache: "no-cache" });
  } catch (error) {
    throw new ApiError("missing", `${address.pathname}: ${error.message}`);
  }
  if (!response.ok) throw new ApiError("missing", `${address.pathname}: HTTP ${response.status}`);
  try {
    return await response.json();
  } catch (error) {
    throw new ApiError("missing", `${address.pathname}: ${error.message}`);
  }
}

// The weights of an attention, as page/web/data.js reads facts.
class Weights {
  constructor({ values, shape }) {
    Object.assign(this, { values, shape, error: 0, least: 0 });
  }

  head(n) {
    const length = this.values.length / this.shape[0];
    return this.values.subarray(n * length, (n + 1) * length);
  }
}
