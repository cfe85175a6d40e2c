// The page of all runs: their state, progress and results, and curves of selected ones.

import { useMemo, useState } from "../vendor/hooks.mjs";
import { Filters, useFilters } from "./filters.js";
import { bytes, costOf, count, duration, known, leftOf, number, removedWords, words } from "./format.js";
import { link, ROOT, useLive, usePlace } from "./live.js";
import { Marked } from "./marks.js";
import { Overlay } from "./overlay.js";
import { Table, useSorted } from "./table.js";
import { Copy, html, isActive, Missing, Progress, Section, State, Time, Trouble } from "./ui.js";

const AT_ONCE = 200;
const MOST_COMPARED = 100;

const pageOf = (row) => link(row.kind === "suite" ? "suite/" : "run/", { id: row.run_id });

const Name = ({ row }) => html`<span class="stack">
  <span><a class="strong row-link" href=${pageOf(row)}>${row.recipe}</a> ${!["train", "suite"].includes(row.kind) && html`<span class="tag">${row.kind}</span> `}<${Marked} row=${row} /></span>
  <span class="muted small code">${row.run_id}</span>
  ${row.note && html`<span class="small ellipsis" title=${row.note}>${row.note}</span>`}
</span>`;

const FEW = 2;

/** `model.lr=0.1` → `lr=0.1`; the title has all of it. */
const shortKey = (override) => override.replace(/^[^=]*\.(?=[^=.]*=)/, "");

/** What differs from the recipe, the dataset and the seed. */
function Differs({ row: { overrides, dataset, recipe, seed } }) {
  const more = [
    overrides.length > FEW && `and ${overrides.length - FEW} more`,
    dataset && dataset !== recipe && `on ${dataset}`,
    known(seed) && !overrides.some((each) => each.startsWith("seed=")) && `seed ${seed}`,
  ].filter(Boolean);
  return html`<span class="stack" title=${overrides.join("\n") || undefined}>
    ${overrides.slice(0, FEW).map((each) => html`<span class="code ellipsis" key=${each}>${shortKey(each)}</span>`)}
    ${more.length > 0 && html`<span class="muted small">${more.join(", ")}</span>`}</span>`;
}

function Doing({ row }) {
  if (row.removed) return html`<span class="muted">${removedWords(row.removed)}</span>`;
  if (row.is_orphan) return html`<span class="muted">abandoned: its process has ended</span>`;
  const trials = row.trials && `${count(row.trials.ended)} of ${count(row.trials.total)} trials${row.trials.useless ? `, ${count(row.trials.useless)} without success` : ""}`;
  if (!isActive(row.state)) {
    const reason = row.why ? `${row.failure ? `${words(row.failure.step)}: ` : ""}${row.why}` : row.damage || trials;
    return reason ? html`<span class="muted ellipsis" title=${reason}>${reason}</span>` : null;
  }
  return html`<span class="stack"><span>${trials || words(row.step) || "waits"}</span>
    <${Progress} value=${row.progress} label=${`Progress of ${row.run_id}`} /></span>`;
}

/** How long it took, or has taken and will take. */
function Took({ row }) {
  const left = isActive(row.state) && !row.is_orphan && leftOf(row);
  return html`<span class="stack"><span>${duration(row.elapsed_s)}</span>
    ${left && left.of && html`<span class="muted small left">${left.value} left${known(row.eta_s) ? "" : ` ${left.of}`}</span>`}</span>`;
}

const Metric = ({ metric }) =>
  known(metric?.value)
    ? html`<span class="stack"><span>${number(metric.value)}${known(metric.std) ? ` ± ${number(metric.std)}` : ""}</span><span class="muted small ellipsis" title=${metric.name}>${metric.name}</span></span>`
    : html`<span class="muted">–</span>`;

/** A column of another package. */
const addedColumn = (cells, title, at) => {
  const of = (row) => cells[row.run_id]?.[at];
  return { id: `added ${title}`, title, wide: true, width: "108px", value: (row) => of(row)?.value,
    cell: (row) => html`<span class="ellipsis" title=${of(row)?.why || undefined}>${known(of(row)?.value) ? of(row).value : "–"}</span>` };
};

function columnsOf({ now, metric, ticked, tick, columns, cells }) {
  return [
    {
      id: "tick",
      title: "Compare",
      hidden: true,
      width: "40px",
      cell: (row) => html`<label class="tick"><input type="checkbox" checked=${ticked.includes(row.run_id)}
        disabled=${!ticked.includes(row.run_id) && ticked.length >= MOST_COMPARED}
        onChange=${() => tick(row.run_id)} /><span class="sr-only">Compare ${row.run_id}</span></label>`,
    },
    { id: "run", title: "Run", lead: true, width: "20%", value: (row) => row.recipe, cell: (row) => html`<${Name} row=${row} />` },
    { id: "state", title: "State", width: "108px", value: (row) => row.state, cell: (row) => html`<${State} of=${row.state} />` },
    { id: "differs", title: "Differs in", width: "18%", wide: true, value: (row) => row.overrides.join(" "), cell: (row) => html`<${Differs} row=${row} />` },
    { id: "step", title: "Step", width: "16%", wide: true, value: (row) => row.progress, cell: (row) => Doing({ row }) },
    { id: "metric", title: metric || "Metric", numeric: true, width: "108px", value: (row) => row.metric?.value, cell: (row) => html`<${Metric} metric=${row.metric} />` },
    { id: "elapsed", title: "Took", numeric: true, width: "112px", value: (row) => row.elapsed_s, cell: (row) => html`<${Took} row=${row} />` },
    { id: "usd", title: "Cost", numeric: true, width: "76px", value: (row) => row.cost?.usd, cell: costOf },
    { id: "size", title: "Size", numeric: true, width: "84px", value: (row) => row.num_bytes, cell: (row) => bytes(row.num_bytes) },
    { id: "user", title: "Who", width: "92px", value: (row) => row.user, cell: (row) => html`<span class="stack"><span class="ellipsis" title=${row.user}>${row.user || "unknown"}</span><span class="muted small ellipsis" title=${row.site}>on ${row.site}</span></span>` },
    { id: "created", title: "Started", numeric: true, width: "112px", value: (row) => row.created_at, cell: (row) => html`<${Time} at=${row.created_at} now=${now} />` },
    ...columns.map((title, at) => addedColumn(cells, title, at)),
  ];
}

/** `digits-20260102-030405-0a1b2c3d` → `digits 0a1b2c3d`. */
const shortId = (id) => id.replace(/-\d{8}-\d{6}-/, " ");

const refusedColumns = (now) => [
  { id: "at", title: "When", numeric: true, cell: (row) => html`<${Time} at=${row.at} now=${now} />` },
  { id: "who", title: "Who", lead: true, cell: (row) => row.user || "unknown" },
  { id: "asked", title: "Request", wide: true, cell: (row) => html`<span class="code">${row.details}</span>` },
  { id: "why", title: "Why it was refused", wide: true, cell: (row) => row.refused },
];

const COMMAND = "headrace run digits --site laptop";

/** Opens the DAG in Airflow, by Airflow's own router: its frame may not navigate what is around it. */
function openDag() {
  const { history } = window.parent;
  history.pushState(null, "", new URL("../dags/headrace_train", window.location.origin + ROOT));
  if (window === window.parent) window.location.reload();
  else window.parent.dispatchEvent(new PopStateEvent("popstate"));
}

/** In place of the table if there are no runs. */
const First = () => html`<div class="panel buttons"><span class="strong">No runs yet.</span>
  <button type="button" class="primary" onClick=${openDag}>Open the DAG headrace_train</button> Its button Trigger opens the form.
  <span>In a terminal: <span class="code">${COMMAND}</span> <${Copy} text=${COMMAND} what="the command" /></span></div>`;

/** The page. */
export function Runs() {
  const filters = useFilters();
  const [kept, keep] = usePlace("compare", "");
  const [limit, setLimit] = useState(AT_ONCE);
  const ticked = useMemo(() => kept.split(" ").filter(Boolean), [kept]);
  const labels = useMemo(() => Object.fromEntries(ticked.map((id) => [id, shortId(id)])), [ticked]);
  const tick = (id) => keep((ticked.includes(id) ? ticked.filter((each) => each !== id) : [...ticked, id]).join(" "));
  const loaded = useLive(filters.address(limit));
  const { rows = [], refused = [], now, metric = "" } = loaded.data ?? {};
  const isWhole = rows.length !== limit;
  const columns = columnsOf({ now, metric, ticked, tick, columns: loaded.data?.columns ?? [], cells: loaded.data?.cells ?? {} });
  const sort = useSorted(rows, columns);
  const active = rows.filter((row) => isActive(row.state)).length;
  document.title = "Runs · headrace";
  return html`<div class="title"><h1>Runs</h1>
      <p class="muted" role="status">${loaded.data ? `${isWhole ? "" : metric ? "the best " : "the newest "}${rows.length} shown, ${active} active` : ""}</p>
      <${Filters} filters=${filters} /></div>
    <${Trouble} loaded=${loaded} />
    ${ticked.length > 0 && html`<${Overlay} ids=${ticked} labels=${labels} what=${ticked.length === 1 ? "one run" : `${ticked.length} runs`} differ onClear=${() => keep("")} />`}
    ${!loaded.data ? html`<${Missing} loaded=${loaded} />`
      : !rows.length && !filters.isAny ? html`<${First} />`
      : html`<div class=${`panel flush ${loaded.isStale ? "stale" : ""}`}><${Table} caption="Runs" columns=${columns} rows=${sort.rows} sort=${sort} rowKey=${(row) => row.run_id} cards fixed empty="No run matches." /></div>`}
    ${!isWhole && html`<p class="more"><button type="button" onClick=${() => setLimit(limit + AT_ONCE)}>Show more</button></p>`}
    ${refused.length > 0 && html`<${Section} title="Refused requests" flush><${Table} caption="Refused requests" columns=${refusedColumns(now)} rows=${refused} rowKey=${(row) => `${row.at} ${row.run_id}`} cards /><//>`}`;
}
