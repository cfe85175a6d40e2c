// Trials of a suite: a table with only the rows in sight in the page.

import { useMemo, useState } from "../vendor/hooks.mjs";
import { count, dollars, duration, known, number, words } from "./format.js";
import { link, useLive, usePlace, useDebounced } from "./live.js";
import { Overlay } from "./overlay.js";
import { Table, useSorted } from "./table.js";
import { Act, Choice, Copy, html, isActive, Missing, Section, State, Trouble } from "./ui.js";

const ALL = "";
const MOST_TICKED = 1000;
const OVERLAID = 8;
const AGAIN = new Set(["failed", "lost", "timed_out", "preempted", "cancelled"]); // states of trials that can be run again

/** A value as text; null if it is unknown. */
export const shown = (value) => (typeof value === "number" ? number(value) : known(value) ? String(value) : null);

/** Columns to rows: `{number, name, state, objective, …, values: {key: value}, metrics: {name: value}}`. */
function rowsOf({ keys, metrics, columns }) {
  const plain = Object.keys(columns).filter((name) => name !== "values" && name !== "metrics");
  const pick = (table, names, at) => Object.fromEntries(names.map((name) => [name, table[name][at]]));
  return columns.number.map((_number, at) => ({
    ...pick(columns, plain, at),
    values: pick(columns.values, keys, at),
    metrics: pick(columns.metrics, metrics, at),
  }));
}

function merge(old, fresh) {
  const rows = rowsOf(fresh);
  if (!old || !fresh.is_part) return { ...fresh, rows };
  if (!rows.length) return { ...old, version: fresh.version };
  const found = new Map([...old.rows, ...rows].map((row) => [row.number, row]));
  const all = (name) => [...new Set([...old[name], ...fresh[name]])];
  const sorted = [...found.values()].sort((one, other) => one.number - other.number);
  return { version: fresh.version, keys: all("keys"), metrics: all("metrics"), rows: sorted };
}

/** All trials of a suite, live: `data` has `keys`, `metrics` and `rows`. */
export function useTrials(id, isOver) {
  const follow = (data) => link("data/trials", { id, since: data.version });
  return useLive(link("data/trials", { id }), { follow, merge, isFinal: () => isOver });
}

/** Shortest distinct names of keys: `model.lr` → `lr`. */
export function shortNames(keys) {
  const ends = keys.map((key) => key.split(".").pop());
  return Object.fromEntries(keys.map((key, at) => [key, ends.indexOf(ends[at]) === ends.lastIndexOf(ends[at]) ? ends[at] : key]));
}

const isNumeric = (rows, value) => rows.some((row) => typeof value(row) === "number");

function measured(rows, id, title, value) {
  const numeric = isNumeric(rows, value);
  return { id, title, numeric, value, cell: (row) => shown(value(row)) };
}

function columnsOf(id, { keys, metrics, rows }, objective, now) {
  const names = shortNames(keys);
  const took = (row) => (known(row.started_at) ? (row.finished_at ?? now) - row.started_at : null);
  const all = [
    { id: "number", title: "Trial", numeric: true, width: "70px", value: (row) => row.number, cell: (row) => html`<a class="strong" href=${link("run/", { id: `${id}:${row.number}` })} title=${row.name}>${row.number}</a>` },
    { id: "state", title: "State", width: "116px", value: (row) => row.state, cell: (row) => html`<${State} of=${row.state} />` },
    measured(rows, "objective", objective?.metric ?? "objective", (row) => row.objective),
    ...keys.map((key) => measured(rows, key, names[key], (row) => row.values[key])),
    ...metrics.filter((name) => name !== objective?.metric).map((name) => measured(rows, name, name, (row) => row.metrics[name])),
    { id: "took", title: "Took", numeric: true, value: took, cell: (row) => (row.state === "queued" ? null : duration(took(row))) },
    { id: "site", title: "Site", value: (row) => row.site || null, cell: (row) => row.site },
    { id: "node", title: "Node", value: (row) => row.node || null, cell: (row) => row.node },
    { id: "attempts", title: "Attempts", numeric: true, value: (row) => (row.attempts > 1 ? row.attempts : null), cell: (row) => (row.attempts > 1 ? row.attempts : null) },
    { id: "usd", title: "Cost", numeric: true, value: (row) => row.usd, cell: (row) => (known(row.usd) ? dollars(row.usd) : null) },
    { id: "energy", title: "kWh", numeric: true, value: (row) => row.energy_wh, cell: (row) => (known(row.energy_wh) ? number(row.energy_wh / 1000) : "—") },
    { id: "why", title: "Cause", value: (row) => row.why || null, cell: (row) => html`<span title=${row.why}>${row.why}</span>` },
  ];
  return all.filter((column) => rows.some((row) => known(column.value(row))));
}

function tickColumn(ticked, tick) {
  const cell = ({ number: trial }) => html`<label class="tick"><input type="checkbox" checked=${ticked.has(trial)}
    disabled=${!ticked.has(trial) && ticked.size >= MOST_TICKED} onChange=${() => tick(trial)} /><span class="sr-only">Trial ${trial}</span></label>`;
  return { id: "tick", title: "Tick", hidden: true, width: "40px", cell };
}

function useFound(rows, state, text, chosen) {
  const [looked, { isWithin }] = [useDebounced(text.toLowerCase()), useDebounced(chosen, 100)];
  return useMemo(() => {
    const has = (row) => [row.number, row.name, row.site, row.node, row.why].some((value) => String(value).toLowerCase().includes(looked));
    return rows.filter((row) => (state === ALL || row.state === state) && (!looked || has(row)) && (!isWithin || isWithin(row)));
  }, [rows, state, looked, isWithin]);
}

function TickedActions({ id, chosen, canAct, onDone }) {
  const rerun = chosen.length === 1 && html`<${Copy} label="Copy rerun command" kind="" text=${`headrace rerun ${id}:${chosen[0].number}`} />`;
  if (!canAct) return rerun;
  const [active, ended] = [chosen.filter((row) => isActive(row.state)), chosen.filter((row) => AGAIN.has(row.state))];
  const body = (what, of) => ({ id, what, trials: of.map((row) => row.number) });
  const given = { address: "act/suite", onDone };
  return html`${rerun} ${active.length > 0 && html`<${Act} ...${given} label=${`Cancel ${count(active.length)}`} kind="danger" body=${body("cancel", active)}
      question=${`Cancel ${count(active.length)} trials?`} detail="They stop, and are not started again." />`}
    ${ended.length > 0 && html`<${Act} ...${given} label=${`Retry ${count(ended.length)}`} body=${body("retry", ended)}
      question=${`Run ${count(ended.length)} trials again?`} detail="Each continues from its last checkpoint, if it has one." />`}`;
}

/** Curves of the first selected trials. */
function TrialCurves({ id, ticked, onClear }) {
  const numbers = [...ticked].slice(0, OVERLAID);
  const ids = useMemo(() => numbers.map((trial) => `${id}:${trial}`), [numbers.join()]);
  const labels = useMemo(() => Object.fromEntries(ids.map((each, nth) => [each, `trial ${numbers[nth]}`])), [ids]);
  if (!ids.length) return null;
  const what = ticked.size > OVERLAID ? `the first ${OVERLAID} of ${count(ticked.size)} trials` : ticked.size === 1 ? "one trial" : `${ticked.size} trials`;
  return html`<${Overlay} ids=${ids} labels=${labels} what=${what} onClear=${onClear} />`;
}

function Whole({ id, data, objective, now, canAct, within, refresh }) {
  const [state, setState] = usePlace("state", ALL);
  const [text, setText] = usePlace("text", "");
  const [ticked, setTicked] = useState(() => new Set());
  const tick = (trial) => setTicked((old) => new Set(old.has(trial) ? [...old].filter((each) => each !== trial) : [...old, trial]));
  const found = useFound(data.rows, state, text, within);
  const known_ = useMemo(() => columnsOf(id, data, objective, now), [data, objective?.metric]);
  const columns = [tickColumn(ticked, tick), ...known_];
  const sort = useSorted(found, columns, objective && !data.keys.includes("data.fold") ? (objective.mode === "max" ? "-objective" : "objective") : "number");
  const states = useMemo(() => [...new Set(data.rows.map((row) => row.state))], [data]);
  const done = () => { setTicked(new Set()); refresh(); };
  const chosen = data.rows.filter((row) => ticked.has(row.number));
  const aside = html`<${TickedActions} id=${id} chosen=${chosen} canAct=${canAct} onDone=${done} />
    <${Choice} label="State" options=${[[ALL, "All"], ...states.map((each) => [each, words(each)])]} value=${state} onChange=${setState} />
    <input type="search" aria-label="Search in trials" placeholder="Search" value=${text} onInput=${(event) => setText(event.target.value)} />`;
  return html`<${TrialCurves} id=${id} ticked=${ticked} onClear=${() => setTicked(new Set())} />
  <${Section} title=${found.length === data.rows.length ? `${count(found.length)} trials` : `${count(found.length)} of ${count(data.rows.length)} trials`} flush aside=${aside}>
    <${Table} caption="Trials" columns=${columns} rows=${sort.rows} rowKey=${(row) => row.number} sort=${sort} windowed empty="No trial matches." />
  <//>`;
}

/** The table of all trials, or of those `within`, with actions on selected ones. */
export function Trials({ id, loaded, objective, now, canAct, within }) {
  if (!loaded.data) return html`<${Missing} loaded=${loaded} />`;
  return html`<${Trouble} loaded=${loaded} /><${Whole} id=${id} data=${loaded.data} objective=${objective} now=${now} canAct=${canAct} within=${within} refresh=${loaded.refresh} />`;
}
