// Asks the server, with the key that it may want, and tells its errors apart by their codes.
import { ApiError } from "../../page/translator/errors.js";
import { SESSION, recall, remember } from "../../page/translator/settings.js";
import { fromBase64, unpack } from "../../page/web/data.js";
import { readEvents } from "./events.js";

const LONGEST = 256; // tokens of a translation

export class Api {
  constructor(base) {
    this.base = base;
    this.key = recall(SESSION, "key") ?? "";
    this.limits = {};
  }

  setKey(key) {
    this.key = key;
    remember(SESSION, "key", key);
  }

  // The runs that there are; the server's limits are known from then on.
  async runs() {
    const { runs, limits } = await this.json("v1/runs");
    this.limits = limits;
    return runs;
  }

  // This number, or the server's limit if that is lower.
  most(name, number) {
    return Math.min(number, this.limits[name] ?? number);
  }

  translate(wanted) {
    return this.json("v1/translate", { max_length: this.most("max_length", LONGEST), ...wanted });
  }

  alternatives(wanted) {
    return this.json("v1/alternatives", wanted);
  }

  // Yields [name, data] of the events of a translation that is written. Raises what an event `error` says.
  async *stream(wanted, signal) {
    const response = await this.send("v1/translate/stream", { max_length: this.most("max_length", LONGEST), ...wanted }, signal);
    try {
      for await (const [name, data] of readEvents(response.body)) {
        const read = JSON.parse(data);
        if (name === "error") throw new ApiError(read.code, read.error);
        yield [name, read];
      }
    } catch (error) {
      throw lost(error, signal);
    }
  }

  // The attention of exactly this translation, by making all of its pieces the prefix.
  async attention({ q, run, pieces }) {
    const written = pieces.map(({ piece }) => piece).filter((piece, n) => piece !== "</s>" || n < pieces.length - 1);
    const answer = await this.translate({
      ...{ q, run, beam: 1, prefixes: [written], max_length: pieces.length },
      ...{ scores: true, attention: { stacks: ["source"] } },
    });
    return unpack(fromBase64(answer.lines[0].attention));
  }

  async json(path, wanted) {
    const response = await this.send(path, wanted);
    try {
      return await response.json();
    } catch (error) {
      throw lost(error);
    }
  }

  async send(path, wanted, signal) {
    const headers = wanted ? { "Content-Type": "application/json" } : {};
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    const settings = { method: wanted ? "POST" : "GET", headers, body: wanted && JSON.stringify(wanted), signal };
    settings.credentials = "omit"; // or the browser would ask for a name and a password by itself
    let response;
    try {
      response = await fetch(new URL(path, this.base), settings);
    } catch (error) {
      throw lost(error, signal);
    }
    if (response.ok) return response;
    const told = await response.json().catch(() => ({})); // what stands between may answer in HTML
    const after = Number(response.headers.get("Retry-After")) || null;
    const code = told.code ?? { 401: "unauthorized", 413: "too_large", 429: "too_many", 503: "busy" }[response.status] ?? "failed";
    throw new ApiError(code, told.error ?? `HTTP ${response.status}`, { status: response.status, after });
  }
}

// What to raise where a connection broke: what came is known, a request that was given up is no error of the server.
function lost(error, signal) {
  return error instanceof ApiError || signal?.aborted ? error : new ApiError("offline", error.message);
}
