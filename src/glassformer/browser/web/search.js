// Greedy and beam search over ids, as generation/search.py does them.
//
// A model has `start(source)`, the cache of a source, `step(rows, cache)`, the logits after each token of equally long rows
// (Float32Array, a row after the other), the number of `classes`, and the ids `eos` and `pad`. A cache has
// `branch(parents)`: row n goes on from what row parents[n] has written.
//
// A hypothesis is { ids, gains, sum, score }: ids without `</s>`, each token's log-probability, their sum, and the score that
// is compared. Sums are rounded to float32, as there.

const rounded = Math.fround;

// What the log-probability of so many tokens is divided by.
export const normaliser = (length, { lengthPenalty, penalty }) => (penalty === "wu" ? (5 + length) / 6 : length) ** lengthPenalty;

// The k likeliest classes of a row of logits, [class, log-probability], likeliest first, and among equals the first class.
// Padding is no class: it is never chosen, and has no probability.
export function likeliest(logits, k, pad) {
  const best = [];
  let [most, least] = [-Infinity, -Infinity];
  for (let n = 0; n < logits.length; n++) {
    const logit = logits[n];
    if (n === pad) continue;
    if (logit > most) most = logit;
    if (!(logit > least)) continue;
    let at = best.length < k ? best.length : k - 1;
    for (; at > 0 && best[at - 1][1] < logit; at--) best[at] = best[at - 1];
    best[at] = [n, logit];
    if (best.length === k) least = best[k - 1][1];
  }
  let sum = 0;
  for (let n = 0; n < logits.length; n++) if (n !== pad) sum += Math.exp(logits[n] - most);
  const norm = most + Math.log(sum);
  if (!Number.isFinite(norm)) throw new RangeError("the model computed numbers that are not finite");
  return best.map(([n, logit]) => [n, rounded(logit - norm)]);
}

// The log-probability of a class of a row of logits.
export function logProbability(logits, chosen, pad) {
  let most = -Infinity;
  for (let n = 0; n < logits.length; n++) if (n !== pad && logits[n] > most) most = logits[n];
  let sum = 0;
  for (let n = 0; n < logits.length; n++) if (n !== pad) sum += Math.exp(logits[n] - most);
  return rounded(logits[chosen] - most - Math.log(sum));
}

// Begin a target with the ids of a prefix: its log-probabilities, the cache after it, and the logits of what follows.
async function begin(model, source, prefix) {
  const cache = await model.start(source);
  const { classes, pad } = model;
  const logits = await model.step([[pad, ...prefix]], cache);
  const row = (n) => logits.subarray(n * classes, (n + 1) * classes);
  return { cache, gains: prefix.map((token, n) => logProbability(row(n), token, pad)), next: row(prefix.length) };
}

// The likeliest tokens after a prefix, [token, log-probability].
export async function following(model, source, prefix, count) {
  const { next } = await begin(model, source, prefix);
  return likeliest(next, Math.min(count, model.classes - 1), model.pad);
}

// Yields each token with its log-probability, the likeliest at every step; the last one is `</s>`, unless the limit comes first.
export async function* greedy(model, source, { limit, prefix = [] }) {
  const { cache, gains, next } = await begin(model, source, prefix);
  for (let n = 0; n < prefix.length; n++) yield [prefix[n], gains[n]];
  let [length, logits] = [prefix.length, next];
  while (length < limit) {
    const [[token, gain]] = likeliest(logits, 1, model.pad);
    yield [token, gain];
    length++;
    if (token === model.eos || length >= limit) return;
    logits = await model.step([[token]], cache);
  }
}

// The `nBest` best-scored translations that a beam finds, best first. `tick` is awaited at each step, and may throw to leave.
//
// Each step extends the open hypotheses by their 2 W likeliest tokens overall; those that end in `</s>` and rank among the
// first W are finished, the first W others stay open. At the limit a hypothesis counts as it is.
export async function beamSearch(model, source, settings, tick = async () => {}) {
  const { beam: width, nBest = 1, limit, prefix = [] } = settings;
  const { cache, gains, next } = await begin(model, source, prefix);
  const finished = [];
  const finish = ({ ids, gains, sum }, of) => insert({ ids: of, gains, sum, score: sum / normaliser(gains.length, settings) }, finished, width);
  let open = [{ ids: prefix, gains, sum: gains.reduce((sum, gain) => rounded(sum + gain), 0) }];
  let logits = next;
  if (prefix.length >= limit) finish(open[0], prefix);
  for (let length = prefix.length; length < limit; ) {
    const candidates = extended(open, logits, 2 * width, model);
    candidates.slice(0, width).filter(({ token }) => token === model.eos).forEach((one) => finish(one, one.ids.slice(0, -1)));
    open = candidates.filter(({ token }) => token !== model.eos).slice(0, width);
    length++;
    if (length >= limit) open.forEach((one) => finish(one, one.ids));
    if (length >= limit || isDecided(finished, open, length, settings)) break;
    await tick();
    cache.branch(open.map(({ parent }) => parent));
    logits = await model.step(open.map(({ token }) => [token]), cache);
  }
  return finished.slice(0, nBest);
}

// The best continuations of some hypotheses by one token each, at most so many, best first.
function extended(open, logits, most, { classes, pad }) {
  const candidates = open.flatMap(({ ids, gains, sum }, parent) =>
    likeliest(logits.subarray(parent * classes, (parent + 1) * classes), most, pad).map(([token, gain]) => ({
      ...{ parent, token, gain, sum: rounded(sum + gain) },
      ...{ before: ids, earlier: gains },
    })),
  );
  candidates.sort((a, b) => b.sum - a.sum); // the sort is stable
  return candidates.slice(0, most).map(({ before, earlier, gain, ...one }) => ({ ...one, ids: [...before, one.token], gains: [...earlier, gain] }));
}

// Put a finished hypothesis among the others, of which the best stay, best first; among equals the first one.
function insert(hypothesis, best, most) {
  let at = best.length;
  while (at > 0 && best[at - 1].score < hypothesis.score) at--;
  best.splice(at, 0, hypothesis);
  best.length = Math.min(best.length, most);
}

// Whether no further step is needed: by the stopping rule, or because nothing is open.
function isDecided(best, open, length, settings) {
  const { stopping, beam, nBest = 1, limit } = settings;
  if (!open.length) return true;
  const atPresent = open[0].sum / normaliser(length, settings);
  if (stopping === "first") return best.length >= beam;
  if (stopping === "heuristic") return best.length >= beam && best.at(-1).score >= atPresent;
  // Log-probabilities only fall, and the longest translation divides them by the most.
  return best.length >= nBest && best[nBest - 1].score >= open[0].sum / normaliser(limit, settings);
}

// The most tokens that a target may have, `</s>` among them.
export const longestTarget = (source, prefix, maxLength) => Math.min(maxLength, Math.min(maxLength, 3 * source.length + 50) + prefix.length);
