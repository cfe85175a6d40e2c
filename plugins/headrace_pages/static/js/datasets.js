// The page of datasets: what was packed, its location, its copies on nodes, and what was trained on it.

import { useState } from "../vendor/hooks.mjs";
import { Dataset, Made, Where } from "./dataset.js";
import { bytes, count, known } from "./format.js";
import { asked, link, useLive, usePlace } from "./live.js";
import { Table, useSorted } from "./table.js";
import { html, Missing, Trouble } from "./ui.js";

const AT_ONCE = 200;

const columnsOf = (now) => [
  { id: "name", title: "Dataset", lead: true, value: (row) => row.name, cell: (row) => html`<span class="stack">
      <a class="strong" href=${link("datasets/", { id: row.fingerprint })}>${row.name}</a>
      <span class="muted small code" title=${row.fingerprint}>${row.fingerprint.slice(0, 12)}</span></span>` },
  { id: "samples", title: "Samples", numeric: true, value: (row) => row.num_samples, cell: (row) => count(row.num_samples) },
  { id: "bytes", title: "Size", numeric: true, value: (row) => row.num_bytes, cell: (row) => html`<span class="stack">
      <span>${bytes(row.num_bytes)}</span>${known(row.num_shards) && html`<span class="muted small">${count(row.num_shards)} ${row.num_shards === 1 ? "shard" : "shards"}</span>`}</span>` },
  { id: "runs", title: "Runs", numeric: true, value: (row) => row.num_runs, cell: (row) => count(row.num_runs) },
  { id: "where", title: "Location", wide: true, width: "36%", value: (row) => row.location, cell: (row) => html`<${Where} row=${row} />` },
  { id: "made", title: "Made", wide: true, value: (row) => row.made_at, cell: (row) => html`<${Made} row=${row} now=${now} />` },
];

const isLike = (row, text) => [row.name, row.fingerprint, row.location, row.made_by].some((each) => each.toLowerCase().includes(text));

function List() {
  const [text, setText] = usePlace("text", "");
  const [limit, setLimit] = useState(AT_ONCE);
  const loaded = useLive(link("data/datasets"));
  const all = loaded.data?.rows ?? [];
  const columns = columnsOf(loaded.data?.now);
  const sort = useSorted(all, columns);
  const found = sort.rows.filter((row) => isLike(row, text.toLowerCase()));
  document.title = "Datasets · headrace";
  return html`<div class="title"><h1>Datasets</h1>
      <p class="muted" role="status">${loaded.data ? `${count(found.length)} shown${loaded.data.is_whole ? "" : ", of the newest runs"}` : ""}</p>
      <div class="filters"><input type="search" aria-label="Search in name, fingerprint, location and run" placeholder="Search" value=${text}
        onInput=${(event) => setText(event.target.value)} /></div></div>
    <${Trouble} loaded=${loaded} />
    ${loaded.data
      ? html`<div class="panel flush"><${Table} caption="Datasets" columns=${columns} rows=${found.slice(0, limit)} sort=${sort} rowKey=${(row) => row.fingerprint} cards
          empty=${text ? "No dataset matches." : "No datasets yet. The first step of a run packs one; headrace run RECIPE --pack-only packs only."} /></div>`
      : html`<${Missing} loaded=${loaded} />`}
    ${found.length > limit && html`<p class="more"><button type="button" onClick=${() => setLimit(limit + AT_ONCE)}>Show more</button></p>`}`;
}

/** The page: the dataset in the address, else all of them. */
export function Datasets() {
  const id = asked().get("id");
  return id ? html`<${Dataset} id=${id} />` : html`<${List} />`;
}
