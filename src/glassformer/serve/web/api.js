// Asks the server, and tells its errors apart by their codes. Who has signed in is known by a cookie that no script reads.
import { ApiError } from "../../page/translator/errors.js";
import { fromBase64, unpack } from "../../page/web/data.js";
import { readEvents } from "./events.js";

const LONGEST = 256; // tokens of a translation

export class Api {
  constructor(base) {
    this.base = base;
    this.limits = {};
  }

  signIn(key) {
    return this.send("sign-in", { method: "POST", body: new URLSearchParams({ key }) });
  }

  signOut() {
    return this.send("sign-out", { method: "POST" });
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
    const response = await this.ask("v1/translate/stream", { max_length: this.most("max_length", LONGEST), ...wanted }, signal);
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
    const data = await unpack(fromBase64(answer.lines[0].attention));
    // After the prefix the server may find another token than `</s>`. Its weights are those of `</s>`: they come before the choice.
    data.hypotheses[0].axes.next = pieces.map(({ piece }) => piece);
    return data;
  }

  async json(path, wanted) {
    const response = await this.ask(path, wanted);
    try {
      return await response.json();
    } catch (error) {
      throw lost(error);
    }
  }

  ask(path, wanted, signal) {
    if (!wanted) return this.send(path, { signal });
    return this.send(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(wanted), signal });
  }

  async send(path, settings) {
    const headers = { ...settings.headers, "X-Requested-With": "XMLHttpRequest" }; // or the browser would ask for a name and a password by itself
    let response;
    try {
      response = await fetch(new URL(path, this.base), { ...settings, headers });
    } catch (error) {
      throw lost(error, settings.signal);
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
