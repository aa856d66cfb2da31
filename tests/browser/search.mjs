// Runs searches over a table of scores: node search.mjs SEARCH_JS < cases.json
//
// A row's state is a number, which every token changes; the logits are those of the table for this state.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { beamSearch, greedy, following } = await import(pathToFileURL(process.argv[2]).href);
const { tables, cases } = JSON.parse(readFileSync(0));

function modelOf(table) {
  const classes = table[0].length;
  return {
    ...{ classes, eos: 0, pad: classes - 1 },
    async start([first]) {
      return {
        states: [first],
        branch(parents) {
          this.states = parents.map((parent) => this.states[parent]);
        },
      };
    },
    async step(rows, cache) {
      const logits = rows.map((tokens, n) =>
        tokens.map((token) => table[(cache.states[n] = (cache.states[n] * 31 + token + 1) % table.length)]),
      );
      return Float32Array.from(logits.flat(2));
    },
  };
}

const found = [];
for (const { table, source, ...settings } of cases) {
  const model = modelOf(tables[table]);
  if (settings.beam > 1) found.push(await beamSearch(model, source, settings));
  else if (settings.count) found.push(await following(model, source, settings.prefix, settings.count));
  else {
    const [ids, gains] = [[], []];
    for await (const [token, gain] of greedy(model, source, settings)) {
      ids.push(token);
      gains.push(gain);
    }
    found.push([{ ids: ids.filter((token) => token !== model.eos), gains }]);
  }
}
console.log(JSON.stringify(found));
