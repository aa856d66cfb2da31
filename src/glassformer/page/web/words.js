// What the map of a head and the overview of all heads say, in English. A page in another language has the same names.
import { percent } from "./drawing.js";

export const ENGLISH = {
  space: " ", // between sentences
  groups: { encoder: "Encoder", decoder: "Decoder → itself", source: "Decoder → source", self: "Attention" },
  name: (group, layer, head) => `${group}, layer ${layer}, ${head}`,
  head: (n) => `head ${n}`,
  meanOfHeads: "mean of the heads",
  mean: "mean",

  // the overview
  overview: "Layers and heads",
  noHeads: "no heads left",
  eachOwn: "The stronger the colour, the larger the weight; each small map has its own largest.",
  bars: (nats) => `The longer a bar, the more the loss rises without the head; the longest stands for ${nats} nats per token.`,
  without: (nats, lower) => `, without it the loss is ${nats} ${lower ? "lower" : "higher"}`,

  // the map
  mapRole: "map of attention weights",
  mapKeys: (name) => `${name}. Arrow keys move over the map, Enter chooses a token.`,
  rowsAndColumns: (rows) => `Each row is a query, each column a key; ${rows}.`,
  tiles: (queries, keys, rows) =>
    `Each cell is ${queries} queries by ${keys} keys and shows the share of attention that these queries give these keys on average; ${rows}.`,
  whole: "the weights of a row sum to 100 %",
  partly: (least, most) =>
    `the weights of a row sum to between ${percent(least)} and ${percent(most)}: the rest lies on positions that are not shown, ` +
    "or the query may look nowhere",
  noMap: "No map of this head was captured.",
  isMean: "This is the mean of the layer's heads.",
  upTo: (most) => `The stronger the colour, the larger the weight, from 0 to ${percent(most)}.`,
  onlyLargest: (count) => `The ${count} largest weights of each query are known; for every other weight an upper bound is given.`,
  exact: "Weights are 32-bit floats.",
  rounded: "Weights are rounded to 1 part in 4,096.",
  dropped: (what) => `Not recorded, for lack of memory: ${what}.`,
  tile: (queries, keys, share) => `tokens ${queries} → ${keys}: ${share} of a query's attention on average`,

  // the chosen token
  notCaptured: "The weights of this head were not captured: Want(weights=True) captures them.",
  looksAt: (token, others) => `${token} looks at ${others}`,
  isLookedAtBy: (token, others) => `${token} is looked at by ${others}`,
  noToken: "no token with a known weight",
};
