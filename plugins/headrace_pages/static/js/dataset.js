// One dataset: its fields, splits and classes, its origin, and the runs that trained on it.

import { bytes, count, known, number, percent } from "./format.js";
import { link, useLive } from "./live.js";
import { Samples } from "./samples.js";
import { Table } from "./table.js";
import { Copy, html, Meter, Missing, Notice, Section, Stat, State, Time, Trouble } from "./ui.js";

const FEW = 4; // channels whose statistics are written out
const LONG = 100; // from this number of classes on, the table scrolls in a box

/** The location of a dataset, and the nodes of open leases that have a copy. */
export const Where = ({ row }) => html`<span class="stack">
  <span class="code">${row.location}${row.is_there === false && html` <span class="tag">not on this machine</span>`}</span>
  ${row.staged.length > 0 && html`<span class="muted small">staged on ${row.staged.map((copy) => `${copy.node} (${copy.tier})`).join(", ")}</span>`}
</span>`;

/** When a dataset was packed, and the run that packed it. */
export const Made = ({ row, now }) => html`<span class="stack">
  <span><${Time} at=${row.made_at} now=${now} /></span>
  ${row.made_by && html`<a class="small" href=${link("run/", { id: row.made_by })}>${row.made_by}</a>`}
</span>`;

const isStill = () => true; // packed data never changes: it is seldom requested again

const short = (values) => (values ? values.slice(0, FEW).map(number).join(", ") + (values.length > FEW ? ", …" : "") : null);

function stored(field) {
  const parts = [field.layout];
  if (field.encoding !== "raw") parts.push(field.encoding);
  if (field.codec !== "none") parts.push(field.codec);
  if (known(field.sample_rate)) parts.push(`${count(field.sample_rate)} Hz`);
  return parts.join(", ");
}

function shapeOf(field) {
  if (field.layout === "ragged") return known(field.ndim) ? `any, ${field.ndim} ${field.ndim === 1 ? "axis" : "axes"}` : "any";
  return field.shape.join(" × ") || "scalar";
}

function range({ statistics, lengths }, field) {
  const [values, sizes] = [statistics[field.name], lengths[field.name]];
  if (values) return `${number(values.minimum)} to ${number(values.maximum)}`;
  return sizes ? `${bytes(sizes.minimum_bytes)} to ${bytes(sizes.maximum_bytes)}` : null;
}

const fieldColumns = (manifest) => [
  { id: "name", title: "Field", lead: true, cell: (row) => html`<span class="strong">${row.name}</span>` },
  { id: "dtype", title: "Type", cell: (row) => html`<span class="code">${row.dtype}</span>` },
  { id: "shape", title: "Shape", cell: shapeOf },
  { id: "stored", title: "Stored", cell: stored },
  { id: "mean", title: "Mean", numeric: true, cell: (row) => short(manifest.statistics[row.name]?.mean) },
  { id: "std", title: "Deviation", numeric: true, cell: (row) => short(manifest.statistics[row.name]?.std) },
  { id: "range", title: "Range", numeric: true, cell: (row) => range(manifest, row) },
];

const splitColumns = (total) => [
  { id: "name", title: "Split", lead: true, cell: (row) => html`<span class="strong">${row.name}</span>${row.folds.length > 0 && html` <span class="muted">${row.folds.length} folds</span>`}` },
  { id: "samples", title: "Samples", wide: true, cell: (row) => html`<${Meter} value=${total ? row.num_samples / total : 0} text=${`${count(row.num_samples)}, ${percent(total ? row.num_samples / total : 0)}`} />` },
  { id: "shards", title: "Shards", numeric: true, cell: (row) => count(row.num_shards) },
  { id: "bytes", title: "Size", numeric: true, cell: (row) => bytes(row.num_bytes) },
];

/** Samples of each class in each split, with bars. */
function Classes({ manifest }) {
  const splits = Object.keys(manifest.class_counts);
  if (!manifest.classes.length || !splits.length) return null;
  const rows = manifest.classes.map((name, label) => ({ name, label }));
  const countOf = (split, row) => manifest.class_counts[split][row.name] ?? 0;
  const most = Object.fromEntries(splits.map((split) => [split, Math.max(1, ...rows.map((row) => countOf(split, row)))]));
  const columns = [
    { id: "label", title: "Label", numeric: true, cell: (row) => row.label },
    { id: "name", title: "Class", lead: true, cell: (row) => html`<span class="strong">${row.name}</span>` },
    ...splits.map((split) => ({
      id: split, title: split, wide: true,
      cell: (row) => html`<${Meter} value=${countOf(split, row) / most[split]} text=${count(countOf(split, row))} />`,
    })),
  ];
  return html`<${Section} title="Classes" flush><${Table} caption="Samples of each class" columns=${columns} rows=${rows} rowKey=${(row) => row.label} windowed=${rows.length > LONG} /><//>`;
}

const quarantineColumns = [
  { id: "path", title: "Sample", wide: true, width: "50%", cell: (row) => html`<span class="code">${row.path}</span>` },
  { id: "reason", title: "Why it was left out", wide: true, cell: (row) => row.reason },
];

const runColumns = (now) => [
  { id: "run", title: "Run", lead: true, cell: (row) => html`<a class="strong" href=${link(row.kind === "suite" ? "suite/" : "run/", { id: row.run_id })}>${row.run_id}</a>` },
  { id: "state", title: "State", cell: (row) => html`<${State} of=${row.state} />` },
  { id: "metric", title: "Metric", numeric: true, cell: (row) => row.metric && html`<span class="stack"><span>${number(row.metric.value)}</span><span class="muted small">${row.metric.name}</span></span>` },
  { id: "created", title: "Started", numeric: true, cell: (row) => html`<${Time} at=${row.created_at} now=${now} />` },
];

const Figures = ({ data, manifest }) => html`<dl class="panel stats">
  <${Stat} name="Samples" value=${count(data.num_samples)} />
  <${Stat} name="Size" value=${bytes(data.num_bytes)}>${count(data.num_shards)} ${data.num_shards === 1 ? "shard" : "shards"}<//>
  ${manifest?.classes.length > 0 && html`<${Stat} name="Classes" value=${count(manifest.classes.length)} />`}
  <${Stat} name="Left out" value=${count(data.num_quarantined)}>could not be packed<//>
  <${Stat} name="Trained on by" value=${count(data.num_runs)}>${data.num_runs === 1 ? "run" : "runs"}<//>
</dl>`;

const Fact = ({ name, children }) => html`<div><dt class="muted small">${name}</dt><dd>${children}</dd></div>`;

/** The origin of a dataset, and other contents of its location. */
function Lineage({ data, manifest }) {
  const origin = manifest?.provenance ?? {};
  const notes = (manifest?.notes ?? []).filter((note) => typeof note === "string");
  const versions = Object.entries(origin.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(", ");
  return html`<${Section} title="Where it comes from"><dl class="lineage">
    <${Fact} name="Packed"><${Made} row=${data} now=${data.now} /><//>
    ${origin.source && html`<${Fact} name="Source"><span class="code">${origin.source}</span><//>`}
    ${origin.recipe && html`<${Fact} name="Recipe">${origin.recipe}<//>`}
    ${versions && html`<${Fact} name="Packed with">${versions}<//>`}
    ${manifest && html`<${Fact} name="Version">${manifest.version}, format ${manifest.format_version}<//>`}
    ${notes.length > 0 && html`<${Fact} name="Notes of packing">${notes.join("; ")}<//>`}
    <${Fact} name="Location"><${Where} row=${data} /><//>
    ${data.others.length > 0 && html`<${Fact} name="Also at this location, with other samples"><ul class="plain-list">${data.others.map((other) => html`<li key=${other.fingerprint}>
      <a class="code" href=${link("datasets/", { id: other.fingerprint })}>${other.fingerprint.slice(0, 12)}</a> ${count(other.num_samples)} samples</li>`)}</ul><//>`}
  </dl><//>`;
}

const Missed = ({ data }) => html`<${Notice} kind="bad" what=${`${count(data.num_missing)} shards are missing or have another size: ${data.missing.join(", ")}${data.num_missing > data.missing.length ? ", …" : ""}`}
  hint="Remove the manifest and run the recipe again: undamaged shards stay." />`;

function Whole({ data }) {
  const { manifest } = data;
  const cut = manifest ? data.num_quarantined - manifest.quarantined.length : 0;
  return html`<${Figures} data=${data} manifest=${manifest} />
    ${data.damage && html`<${Notice} kind="warn" what=${data.damage} />`}
    ${data.num_missing > 0 && html`<${Missed} data=${data} />`}
    ${manifest && html`<${Samples} dataset=${data} />`}
    ${manifest && html`<${Section} title="Fields" flush><${Table} caption="Fields of a sample" columns=${fieldColumns(manifest)} rows=${manifest.fields} rowKey=${(row) => row.name} cards /><//>
      <${Section} title="Splits" flush><${Table} caption="Splits" columns=${splitColumns(data.num_samples)} rows=${data.splits} rowKey=${(row) => row.name} cards /><//>
      <${Classes} manifest=${manifest} />
      ${manifest.quarantined.length > 0 && html`<${Section} title="Samples that were left out" flush>
        <${Table} caption="Samples that could not be packed" columns=${quarantineColumns} rows=${manifest.quarantined} rowKey=${(row) => row.path} cards />
        ${cut > 0 && html`<p class="muted empty">and ${count(cut)} more</p>`}<//>`}`}
    <${Section} title="Runs that trained on it" flush><${Table} caption="Runs that trained on it" columns=${runColumns(data.now)} rows=${data.runs} rowKey=${(row) => row.run_id} cards empty="None yet." />
      ${data.num_runs > data.runs.length && html`<p class="muted empty">and ${count(data.num_runs - data.runs.length)} earlier ones</p>`}<//>
    <${Lineage} data=${data} manifest=${manifest} />`;
}

/** The page of one dataset. */
export function Dataset({ id }) {
  const loaded = useLive(link("data/dataset", { id }), { isFinal: isStill });
  const { data } = loaded;
  document.title = `${data?.name ?? "Dataset"} · headrace`;
  if (!data) return html`<h1 class="sr-only">Dataset</h1><${Missing} loaded=${loaded} />`;
  return html`<${Trouble} loaded=${loaded} />
    <div class="title"><p class="crumb"><a href=${link("datasets/")}>Datasets</a></p>
      <h1>${data.manifest?.name ?? data.name}</h1>
      <p class="facts"><span><span class="code">${data.fingerprint}</span> <${Copy} text=${data.fingerprint} what="the fingerprint" /></span></p></div>
    <${Whole} data=${data} />`;
}
