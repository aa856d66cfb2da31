// The files of the folder that the page needs, kept by the browser from one visit to the next.

// A file that could not be loaded, or isn't the one that was expected.
export class FileError extends Error {
  constructor(name, reason) {
    super(`${name}: ${reason}`);
  }
}

// Load files { path, size, digest }, by their paths below `base`; `progress` is told the bytes that have come, of all.
//
// Where the browser has a cache for pages from a secure address, what has come is kept in it under its digest, and what other
// versions left there is thrown away.
export async function loadFiles(base, files, progress) {
  const kept = await openCache(base);
  const total = files.reduce((sum, { size }) => sum + size, 0);
  let come = 0;
  const count = (bytes) => progress((come += bytes), total);
  const loaded = await Promise.all(files.map((file) => load(base, file, kept, count)));
  await forget(kept, new Set(files.map((file) => addressOf(base, file))));
  return Object.fromEntries(files.map(({ path }, n) => [path, loaded[n]]));
}

const addressOf = (base, { path, digest }) => new URL(`${path}?${digest}`, base).href;

// A browser may have no cache, or forbid it: then files come from where they lie.
async function openCache(base) {
  if (!globalThis.caches) return null;
  try {
    return await caches.open(`glassformer ${new URL(base).pathname}`);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    return null;
  }
}

async function load(base, file, kept, count) {
  const address = addressOf(base, file);
  const found = await kept?.match(address);
  if (found) {
    const bytes = new Uint8Array(await found.arrayBuffer());
    count(bytes.length);
    return bytes;
  }
  const bytes = await fetched(address, file, count);
  if (kept) await put(kept, address, bytes);
  return bytes;
}

async function fetched(address, { path, size, digest }, count) {
  let response;
  try {
    response = await fetch(address);
  } catch (error) {
    throw new FileError(path, error.message);
  }
  if (!response.ok) throw new FileError(path, `HTTP ${response.status}`);
  const bytes = new Uint8Array(size);
  let come = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read().catch((error) => {
      throw new FileError(path, error.message);
    });
    if (done) break;
    if (come + value.length > size) throw new FileError(path, `more than ${size} bytes`);
    bytes.set(value, come);
    come += value.length;
    count(value.length);
  }
  if (come < size || (await digestOf(bytes)) !== (globalThis.crypto?.subtle ? digest : "")) throw new FileError(path, "another version");
  return bytes;
}

// The first characters of the SHA-256 of bytes, where the page is from a secure address.
async function digestOf(bytes) {
  if (!globalThis.crypto?.subtle) return "";
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest.subarray(0, 10), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// There may be no room: then it is loaded again next time.
async function put(kept, address, bytes) {
  try {
    await kept.put(address, new Response(bytes));
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
  }
}

async function forget(kept, present) {
  for (const request of (await kept?.keys()) ?? []) if (!present.has(request.url)) await kept.delete(request);
}
