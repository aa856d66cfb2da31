// The worker in which the model computes, so that typing never waits for it.
//
// It is told { id, kind, ... } and tells { id, done } or { id, error }, before them { id, event } where something comes in
// parts; { id, kind: "leave" } gives up what was asked under that id.
import { FileError, loadFiles } from "./files.js";
import { Model } from "./model.js";
import { Tokenizer } from "./tokenizer.js";
import { Refusal, Translator } from "./translator.js";

const MOST_THREADS = 4;
const PROGRESS_EVERY = 50; // milliseconds
const TRIAL = { source: 16, steps: 8 }; // tokens
const REHEARSALS = 3;
const TURN_EVERY = 8; // milliseconds
const left = new Set();
let translator;
let turned = 0; // when messages could come in last

// Let messages come in between two steps: one of them may say that this search is wanted no more.
const channel = new MessageChannel();
const turn = () =>
  new Promise((done) => {
    channel.port1.onmessage = done;
    channel.port2.postMessage(null);
  });

class Left extends Error {}

async function waitsFor(id) {
  if (performance.now() - turned < TURN_EVERY) return;
  await turn();
  turned = performance.now();
  if (left.delete(id)) throw new Left();
}

const KINDS = {
  load,
  async *stream({ id, q, ...settings }) {
    const writing = translator.write(q, settings, () => waitsFor(id));
    for (;;) {
      const { done, value } = await writing.next();
      if (done) return value;
      yield value;
    }
  },
  translate: ({ id, q, ...settings }) => translator.translate(q, settings, () => waitsFor(id)),
  alternatives: ({ q, ...settings }) => translator.alternatives(q, settings),
  attention: ({ q, pieces }) => translator.attention(q, pieces),
};

// Load the files and what computes; tell how far it is.
async function* load({ base, manifest }) {
  const { files, runtime, model } = manifest;
  const adapter = runtime.webgpu && (await navigator.gpu?.requestAdapter());
  const { module, loader, wasm } = adapter ? runtime.webgpu : runtime.wasm;
  const others = Object.values(runtime).map((build) => build.wasm).filter((path) => path !== wasm);
  const wanted = files.filter(({ path }) => !others.includes(path));
  const found = yield* told((progress) => loadFiles(base, wanted, progress));
  const json = (path) => JSON.parse(new TextDecoder().decode(found[path]));
  const ort = await import(new URL(module, base).href);
  const threads = globalThis.crossOriginIsolated ? Math.min(MOST_THREADS, navigator.hardwareConcurrency || 1) : 1;
  Object.assign(ort.env.wasm, { numThreads: threads, wasmBinary: found[wasm].buffer, wasmPaths: { mjs: new URL(loader, base).href } });
  const open = (providers) => Model.load(ort, found[model.encoder], found[model.decoder], json(model.config), providers);
  const [device, graphs] = await quickest(open, adapter ? ["webgpu", "wasm"] : ["wasm"]);
  const source = new Tokenizer(json(model.source_tokenizer));
  const target = model.target_tokenizer === model.source_tokenizer ? source : new Tokenizer(json(model.target_tokenizer));
  translator = new Translator(graphs, source, target, json(model.generation));
  await rehearse(source);
  return { device, threads };
}

// Translate something before anybody asks: browsers compile scripts and WebAssembly the better the more they have run.
async function rehearse(tokenizer) {
  const text = tokenizer.decode([2, 3, 4, 5].filter((id) => id < tokenizer.names.length));
  for (let n = 0; n < REHEARSALS; n++) await translator.translate(text, { max_length: 16 }, async () => {});
}

// Load the graphs for each device, and keep those that translate soonest: a small model's steps are too short for some GPUs.
async function quickest(open, devices) {
  const tried = [];
  for (const device of devices) {
    try {
      const model = await open(device === "wasm" ? ["wasm"] : [device, "wasm"]);
      await trial(model); // the first one takes longer than others
      tried.push({ device, model, time: await trial(model) });
    } catch (error) {
      if (device === devices.at(-1) && !tried.length) throw error; // what a GPU can't do is done without it
    }
  }
  tried.sort((a, b) => a.time - b.time);
  for (const { model } of tried.slice(1)) await model.release();
  return [tried[0].device, tried[0].model];
}

// The milliseconds that a short translation takes.
async function trial(model) {
  const began = performance.now();
  const cache = await model.start(new Array(TRIAL.source).fill(model.eos));
  for (let n = 0; n < TRIAL.steps; n++) await model.step([[model.pad]], cache);
  return performance.now() - began;
}

// Yields what a task tells of its progress, now and then, and returns its result.
async function* told(task) {
  let [news, wake, result] = [null, () => {}, undefined];
  const ending = task((done, total) => {
    news = { done, total };
    wake();
  }).then(
    (value) => (result = { value }),
    (error) => (result = { error }),
  );
  while (!result) {
    await Promise.race([ending, new Promise((resolve) => (wake = resolve))]);
    if (news) yield news;
    news = null;
    if (!result) await Promise.race([ending, new Promise((resolve) => setTimeout(resolve, PROGRESS_EVERY))]);
  }
  if (result.error) throw result.error;
  return result.value;
}

async function answer({ kind, ...asked }) {
  const { id } = asked;
  const made = KINDS[kind](asked);
  if (!made[Symbol.asyncIterator]) return made;
  for (;;) {
    const { done, value } = await made.next();
    if (done) return value;
    postMessage({ id, event: value });
  }
}

// One request is answered after the other: a session of onnxruntime computes one step at a time.
let last = Promise.resolve();
onmessage = ({ data }) => {
  if (data.kind === "leave") return left.add(data.id);
  last = last.then(async () => {
    try {
      if (left.delete(data.id)) throw new Left();
      postMessage({ id: data.id, done: await answer(data) });
    } catch (error) {
      const code = error instanceof Left ? "left" : error instanceof Refusal ? error.code : error instanceof FileError ? "missing" : "broken";
      postMessage({ id: data.id, error: { code, message: error.message } });
    }
  });
};
