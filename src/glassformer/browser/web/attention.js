// A model's weights over the source in the form in which a page shows them: that of page/web/data.js, but for the class of
// the weights, which no message between a page and its worker can hold (see local.js).

// `layers` are [{ layer, heads, values }], weights (heads, queries, keys).
export function asShown(layers, sourceTokens, targetTokens) {
  const sizes = [targetTokens.length, sourceTokens.length];
  const views = layers.map(({ layer, heads, values }) => ({
    path: `decoder.${layer}.source_attention`,
    group: "source",
    layer,
    queries: "next",
    keys: "source",
    sizes,
    tile: null,
    none: 0xffff,
    heads: Array.from({ length: heads }, () => ({})),
    mean: false,
    facts: { weights: { values, shape: [heads, ...sizes] } },
    exact: true,
    rows: [1, 1],
    dropped: "",
  }));
  const hypothesis = { label: "", axes: { source: sourceTokens, next: targetTokens }, grids: {}, images: {}, views, start: sharpest(views) };
  return { title: "", hypotheses: [hypothesis] };
}

// The head of the last layer whose queries look at the fewest keys.
function sharpest(views) {
  const view = views.at(-1);
  const { values, shape } = view.facts.weights;
  const each = values.length / shape[0];
  const entropy = view.heads.map((_, n) => values.subarray(n * each, (n + 1) * each).reduce((sum, weight) => sum - (weight && weight * Math.log(weight)), 0));
  return { at: view.path, head: entropy.indexOf(Math.min(...entropy)) };
}
