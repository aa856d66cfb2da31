// Which languages the runs translate between, and which run is meant.

// Whether all runs know their languages: else they are chosen by name.
export const areNamed = (runs) => runs.every(({ source, target }) => source && target);

const TAG = /^[a-z]{2,3}(-[a-z]{4})?(-([a-z]{2}|\d{3}))?$/i; // the codes that Intl knows names for
const unique = (pairs) => [...new Map(pairs)];

// [code, name] of the languages that are translated.
export const sources = (runs) => unique(runs.map((run) => [run.source, run.source_name || run.source]));

// [code, name] of the languages that one is translated to.
export const targets = (runs, source) =>
  unique(runs.filter((run) => run.source === source).map((run) => [run.target, run.target_name || run.target]));

// The same with the names that another language has for them; the server's names are English.
export function named(pairs, code) {
  if (code === "en") return pairs;
  const names = new Intl.DisplayNames([code], { type: "language", fallback: "none" });
  return pairs.map(([language, name]) => [language, (TAG.test(language) && names.of(language)) || name]);
}

export const between = (runs, source, target) => runs.filter((run) => run.source === source && run.target === target);

// The run for a source language, to the same target if there is one.
export const from = (runs, source, target) => between(runs, source, target)[0] ?? runs.find((run) => run.source === source);

// The run of the other direction, if there is one.
export const reverse = (runs, { source, target }) => between(runs, target, source)[0];
