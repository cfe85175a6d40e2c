// The page of all runs: their state, progress and results, and curves of selected ones.

import { useMemo, useState } from "../vendor/hooks.mjs";
import { costOf, count, duration, known, number, words } from "./format.js";
import { link, useLive, usePlace, useDebounced } from "./live.js";
import { Overlay } from "./overlay.js";
import { Table, useSorted } from "./table.js";
import { Choice, html, isActive, Missing, Progress, State, Time, Trouble } from "./ui.js";

const AT_ONCE = 200;
const OVERLAID = 8;
const STATES = [
  ["", "All"],
  ["queued,running", "Active"],
  ["succeeded", "Succeeded"],
  ["failed,lost,timed_out,preempted", "Failed"],
  ["cancelled", "Cancelled"],
];

const pageOf = (row) => link(row.kind === "suite" ? "suite/" : "run/", { id: row.run_id });

/** A refused request, as a row beside the runs. */
const refusedRow = (act) => ({ ...act, created_at: act.at, state: "refused", recipe: act.details, why: act.refused });

const Name = ({ row }) => html`<span class="stack">
  <a class="strong row-link ellipsis" href=${pageOf(row)}>${row.recipe}</a>
  <span class="muted small code ellipsis" title=${row.why || row.damage || undefined}>${row.run_id}</span>
</span>`;

function Doing({ row }) {
  if (row.is_orphan) return html`<span class="muted">abandoned: its process has ended</span>`;
  const trials = row.trials && `${count(row.trials.ended)} of ${count(row.trials.total)} trials${row.trials.useless ? `, ${count(row.trials.useless)} without success` : ""}`;
  if (!isActive(row.state)) {
    const reason = row.why ? `${row.failure ? `${words(row.failure.step)}: ` : ""}${row.why}` : row.damage || trials;
    return reason ? html`<span class="muted ellipsis" title=${reason}>${reason}</span>` : null;
  }
  return html`<span class="stack"><span>${trials || words(row.step) || "waits"}</span>
    <${Progress} value=${row.progress} label=${`Progress of ${row.run_id}`} /></span>`;
}

/** Time until a run's end; if that is unknown, until the end of its step. */
const Left = ({ row }) => known(row.eta_s) || !known(row.step_eta_s) ? duration(row.eta_s) : html`<span class="stack"><span>${duration(row.step_eta_s)}</span><span class="muted small">of ${words(row.step)}</span></span>`;

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

function columnsOf({ now, ticked, tick, columns, cells }) {
  return [
    {
      id: "tick",
      title: "Compare",
      hidden: true,
      width: "40px",
      cell: (row) => row.state !== "refused" && html`<label class="tick"><input type="checkbox" checked=${ticked.includes(row.run_id)}
        disabled=${!ticked.includes(row.run_id) && ticked.length >= OVERLAID}
        onChange=${() => tick(row.run_id)} /><span class="sr-only">Compare ${row.run_id}</span></label>`,
    },
    { id: "run", title: "Run", lead: true, width: "26%", value: (row) => row.recipe, cell: (row) => html`<${Name} row=${row} />` },
    { id: "state", title: "State", width: "112px", value: (row) => row.state, cell: (row) => html`<${State} of=${row.state} />` },
    { id: "step", title: "Step", width: "20%", wide: true, value: (row) => row.progress, cell: (row) => Doing({ row }) },
    { id: "metric", title: "Metric", numeric: true, width: "108px", value: (row) => row.metric?.value, cell: (row) => html`<${Metric} metric=${row.metric} />` },
    { id: "elapsed", title: "Elapsed", numeric: true, width: "106px", value: (row) => row.elapsed_s, cell: (row) => duration(row.elapsed_s) },
    { id: "eta", title: "Left", numeric: true, width: "106px", value: (row) => row.eta_s, cell: (row) => (isActive(row.state) ? Left({ row }) : null) },
    { id: "usd", title: "Cost", numeric: true, width: "84px", value: (row) => row.cost?.usd, cell: costOf },
    { id: "site", title: "Site", width: "104px", value: (row) => row.site, cell: (row) => html`<span class="stack"><span class="ellipsis" title=${row.site}>${row.site}</span><span class="muted small ellipsis">${row.user}</span></span>` },
    { id: "created", title: "Started", numeric: true, width: "116px", value: (row) => row.created_at, cell: (row) => html`<${Time} at=${row.created_at} now=${now} />` },
    ...columns.map((title, at) => addedColumn(cells, title, at)),
  ];
}

/** `digits-20260102-030405-0a1b2c3d` → `digits 0a1b2c3d`. */
const shortId = (id) => id.replace(/-\d{8}-\d{6}-/, " ");

function Filters({ state, setState, text, setText }) {
  return html`<div class="filters">
    <${Choice} label="State" options=${STATES} value=${state} onChange=${setState} />
    <input type="search" aria-label="Search in recipe, site and id" placeholder="Search" value=${text}
      onInput=${(event) => setText(event.target.value)} />
  </div>`;
}

/** The page. */
export function Runs() {
  const [state, setState] = usePlace("state", "");
  const [text, setText] = usePlace("text", "");
  const [kept, keep] = usePlace("compare", "");
  const [limit, setLimit] = useState(AT_ONCE);
  const ticked = useMemo(() => kept.split(" ").filter(Boolean), [kept]);
  const labels = useMemo(() => Object.fromEntries(ticked.map((id) => [id, shortId(id)])), [ticked]);
  const tick = (id) => keep((ticked.includes(id) ? ticked.filter((each) => each !== id) : [...ticked, id]).join(" "));
  const loaded = useLive(link("data/runs", { limit, state: state.split(","), text: useDebounced(text) }));
  const rows = useMemo(() => {
    const refused = (loaded.data?.refused ?? []).map(refusedRow);
    return [...(loaded.data?.rows ?? []), ...refused].sort((one, other) => other.created_at - one.created_at);
  }, [loaded.data]);
  const isWhole = loaded.data?.rows.length !== limit;
  const columns = columnsOf({ now: loaded.data?.now, ticked, tick, columns: loaded.data?.columns ?? [], cells: loaded.data?.cells ?? {} });
  const sort = useSorted(rows, columns);
  const active = rows.filter((row) => isActive(row.state)).length;
  document.title = "Runs · headrace";
  return html`<div class="title"><h1>Runs</h1>
      <p class="muted" role="status">${loaded.data ? `${isWhole ? "" : "the newest "}${rows.length} shown, ${active} active` : ""}</p>
      <${Filters} state=${state} setState=${setState} text=${text} setText=${setText} /></div>
    <${Trouble} loaded=${loaded} />
    ${ticked.length > 0 && html`<${Overlay} ids=${ticked} labels=${labels} what=${ticked.length === 1 ? "one run" : `${ticked.length} runs`} differ onClear=${() => keep("")} />`}
    ${loaded.data
      ? html`<div class=${`panel flush ${loaded.isStale ? "stale" : ""}`}><${Table} caption="Runs" columns=${columns} rows=${sort.rows} sort=${sort} rowKey=${(row) => row.run_id} cards fixed
          empty=${state || text ? "No run matches." : "No runs yet. Trigger the DAG headrace_train, or call headrace run in a terminal."} /></div>`
      : html`<${Missing} loaded=${loaded} />`}
    ${!isWhole && html`<p class="more"><button type="button" onClick=${() => setLimit(limit + AT_ONCE)}>Show more</button></p>`}`;
}
