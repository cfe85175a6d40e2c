// Several runs or trials together: their curves, and their differences.

import { useMemo } from "../vendor/hooks.mjs";
import { Curves, swatch } from "./charts.js";
import { words } from "./format.js";
import { link, useLive } from "./live.js";
import { Table } from "./table.js";
import { html, Missing, Section, Trouble } from "./ui.js";

/** A value of a recipe as JSON, without the quotes of a text. */
const plain = (value) => (/^"[^"\\]*"$/.test(value) ? value.slice(1, -1) : value);

const MOST_DRAWN = 16;
const ORDER = ["metrics", "recipe", "data", "code", "images", "packages"];

function Differences({ ids, labels }) {
  const loaded = useLive(link("data/compare", { id: ids }), { isFinal: () => true });
  if (!loaded.data || loaded.isStale) return html`<${Missing} loaded=${loaded} />`;
  const rows = [...loaded.data.rows].sort((one, other) => ORDER.indexOf(one.part) - ORDER.indexOf(other.part));
  const columns = [
    { id: "key", title: "What", cell: (row) => html`<span class="muted">${words(row.part)}</span> <span class="strong">${row.key}</span>` },
    ...ids.map((id, nth) => ({
      id,
      title: labels[id],
      head: html`<span class="swatch" style=${{ background: swatch(nth) }}></span> ${labels[id]}`,
      cell: (row) => html`<span class="ellipsis number" title=${row.values[nth]}>${row.values[nth] === "" ? "–" : plain(row.values[nth])}</span>`,
    })),
  ];
  return html`<${Trouble} loaded=${loaded} /><${Table} caption="What differs" columns=${columns} rows=${rows}
    rowKey=${(row) => `${row.part} ${row.key}`} empty="No recorded part differs." />`;
}

/** Curves of runs or trials by `ids`, of the first sixteen, with `labels` as names; `differ`: also a table of differences. */
export function Overlay({ ids, labels, what, differ = false, onClear }) {
  const drawn = ids.slice(0, MOST_DRAWN); // as many as differ by colour and dash
  const loaded = useLive(link("data/curves", { id: drawn }));
  const runs = useMemo(() => loaded.data?.runs.filter((run) => ids.includes(run.run_id)), [loaded.data, ids]);
  const untick = html`<button type="button" class="plain" onClick=${onClear}>Untick all</button>`;
  return html`<${Section} title=${`Curves of ${ids.length > drawn.length ? `the first ${drawn.length} of ` : ""}${what}`} aside=${untick}>
      <${Trouble} loaded=${loaded} />
      ${runs ? html`<${Curves} runs=${runs} labels=${labels} />` : html`<${Missing} loaded=${loaded} />`}<//>
    ${differ && ids.length > 1 && html`<${Section} title="What differs" flush><${Differences} ids=${ids} labels=${labels} /><//>`}`;
}
