// The page of a suite: its trials by state, their results, and actions on them.

import { useMemo, useState } from "../vendor/hooks.mjs";
import { Add } from "./add.js";
import { axisOf, REPEATS, spread } from "./axes.js";
import { Chart } from "./charts.js";
import { costOf, count, duration, known, number, words } from "./format.js";
import { asked, link, useLive } from "./live.js";
import { Parallel } from "./parallel.js";
import { Acts, Head, Report } from "./run_parts.js";
import { Sites } from "./sites.js";
import { Table } from "./table.js";
import { shortNames, shown, Trials, useTrials } from "./trials.js";
import { Act, Copy, html, isActive, Missing, Notice, Progress, Section, Stat, tone, Trouble } from "./ui.js";

const ORDER = ["succeeded", "pruned", "failed", "lost", "timed_out", "preempted", "cancelled", "running", "queued"];
const FIRST_KEYS = 5;
const MOST_RUNNING = 12;
const FOLD = "data.fold"; // folds of a cross-validation have no best one

function Counts({ trials }) {
  const shown = ORDER.filter((state) => trials.counts[state]);
  return html`<div class="panel counts">
    <div class="stacked" aria-hidden="true">${shown.map((state) => html`<span key=${state} class=${`tone-${tone(state)} is-${state}`} style=${{ flexGrow: trials.counts[state] }}></span>`)}</div>
    <ul>${shown.map((state) => html`<li key=${state}><span class=${`state tone-${tone(state)}`} data-state=${state}>${words(state)}</span> <span class="number strong">${count(trials.counts[state])}</span></li>`)}</ul>
  </div>`;
}

function Figures({ suite }) {
  const { best, point, objectives } = suite;
  const { total, counts, ended } = suite.trials;
  const goal = objectives[0] && `${objectives[0].metric}, ${objectives[0].mode === "max" ? "higher" : "lower"} is better`;
  return html`<dl class="panel stats">
    <${Stat} name="Trials that have ended" value=${count(ended)}>of ${count(total)}<//>
    <${Stat} name="Running" value=${count(counts.running ?? 0)}>${suite.paused ? "paused: no more start" : ""}<//>
    ${point
      ? html`<${Stat} name="Mean of the folds" value=${number(point.spread.mean)}>${known(point.spread.std) ? `± ${number(point.spread.std)}, ` : ""}${goal}<//>
        ${Object.entries(point.folds).map(([fold, { mean }]) => html`<${Stat} key=${fold} name=${`Fold ${fold}`} value=${number(mean)} />`)}`
      : html`<${Stat} name="Best value" value=${number(suite.best_value)}>${goal}<//>
        <${Stat} name="Best trial" value=${best ?? undefined}>${suite.best_name}<//>`}
    ${isActive(suite.state)
      ? !suite.paused && html`<${Stat} name="Left" value=${duration(suite.eta_s)}>${known(suite.eta_error_s) ? `± ${duration(suite.eta_error_s)}` : ""}<//>`
      : html`<${Stat} name="Took" value=${duration(suite.elapsed_s)} />`}
    ${suite.cost && html`<${Stat} name="Cost" value=${costOf(suite)} />`}
  </dl>`;
}

function Actions({ suite, keys, refresh }) {
  const { paused } = suite;
  const rerun = html`<${Copy} label="Copy rerun command" kind="" text=${`headrace rerun ${suite.run_id}`} />`;
  if (!suite.can_act || suite.removed) return rerun;
  const failed = (suite.trials.counts.failed ?? 0) + (suite.trials.counts.lost ?? 0);
  const given = (what) => ({ address: "act/suite", body: { id: suite.run_id, what, trials: [] }, onDone: refresh });
  return html`${rerun}
    <${Add} id=${suite.run_id} keys=${keys} onDone=${refresh} />
    ${isActive(suite.state) && (paused
      ? html`<${Act} key="resume" ...${given("resume")} label="Resume" question="Start trials again?" detail="The suite continues." />`
      : html`<${Act} key="pause" ...${given("pause")} label="Pause" question="Pause this suite?" detail="Running trials continue; no more start until it is resumed." />`)}
    ${failed > 0 && html`<${Act} key="retry" ...${given("retry")} label="Retry failed" question=${`Run ${count(failed)} failed trials again?`} detail="Each continues from its last checkpoint, if it has one." />`}
    ${isActive(suite.state) && html`<${Act} key="cancel" ...${given("cancel")} label="Cancel trials" kind="danger" question="Cancel all trials that have not ended?" detail="Running trials are stopped, and the others never start. The suite ends with the results so far." />`}`;
}

/** Metrics as words. */
const measured = (metrics) => Object.entries(metrics).map(([name, value]) => `${name} ${number(value)}`).join(", ");

function Running({ suite }) {
  if (!suite.running.length) return null;
  const more = suite.running.length - MOST_RUNNING;
  return html`<${Section} title="Running now" flush>
    <ul class="running">${suite.running.slice(0, MOST_RUNNING).map((trial) => html`<li key=${trial.number}>
      <span class="row"><span class="ellipsis" title=${trial.name}><span class="strong">${trial.number}</span> ${trial.name}</span><span class="muted small">${trial.node}</span></span>
      <${Progress} value=${trial.done} label=${`Progress of trial ${trial.number}`} />
      <span class="small muted number ellipsis">${trial.waits || measured(trial.metrics)}</span>
    </li>`)}</ul>${more > 0 && html`<p class="muted empty">and ${count(more)} more</p>`}
  <//>`;
}

const sortedBy = (points) => [...points].sort((one, other) => one.x - other.x);

/** Objective over trials, with the best so far, except for folds. */
function progressLines(rows, mode, isContest) {
  const better = mode === "max" ? Math.max : Math.min;
  let best = null;
  const bests = rows.map((row) => (best = best === null ? row.objective : better(best, row.objective)));
  const x = rows.map((row) => row.number);
  return [
    { label: "trial", x, y: rows.map((row) => row.objective), only: "points" },
    { label: "best so far", x, y: bests, only: "steps" },
  ].slice(0, isContest ? 2 : 1);
}

/** Objective by one key; null if all ended trials have the same value of it. */
function marginal(rows, key, name, isLog) {
  const axis = axisOf(rows, key, name, (row) => row.values[key], isLog);
  if (!axis) return null;
  const place = (row) => (axis.names ? axis.names.indexOf(String(row.values[key])) + spread(row.number) : row.values[key]);
  const points = sortedBy(rows.filter((row) => known(row.values[key])).map((row) => ({ x: place(row), y: row.objective, trial: row.number })));
  const line = { label: "trial", x: points.map((it) => it.x), y: points.map((it) => it.y), only: "points", note: (at) => `, trial ${points[at].trial}` };
  return { title: name, xTitle: name, xNames: axis.names, isLogX: axis.isLog, isWholeX: axis.isWhole, lines: [line] };
}

function Found({ data, objective, logKeys }) {
  const [all, setAll] = useState(false);
  const charts = useMemo(() => {
    const rows = data.rows.filter((row) => known(row.objective));
    if (!rows.length) return [];
    const names = shortNames(data.keys);
    const first = { title: "over trials", xTitle: "trial", isWholeX: true, lines: progressLines(rows, objective?.mode, !data.keys.includes(FOLD)) };
    const keys = data.keys.filter((key) => !REPEATS.has(key));
    return [first, ...keys.map((key) => marginal(rows, key, names[key], logKeys.includes(key))).filter(Boolean)];
  }, [data, objective?.mode]);
  if (!charts.length) return null;
  const shown = all ? charts : charts.slice(0, FIRST_KEYS + 1);
  const aside = charts.length > shown.length && html`<button type="button" class="plain" onClick=${() => setAll(true)}>Show all ${charts.length - 1} keys</button>`;
  return html`<${Section} title=${`${objective?.metric ?? "Objective"} by what was tried`} aside=${aside}>
    <div class="charts">${shown.map((chart) => html`<${Chart} key=${chart.title} ...${chart} />`)}</div><//>`;
}

/** The interval of a mean, as `interval_words` gives it on the terminal. */
const interval = (found) => (known(found?.low) ? `${number(found.low)} to ${number(found.high)}` : found?.count > 1 ? found.values.map(number).join(", ") : null);

/** Means over the seeds and folds of each point. */
function Points({ suite }) {
  if (!suite.points.length) return null;
  const names = shortNames([...new Set(suite.points.flatMap((each) => Object.keys(each.values)))]);
  const columns = [
    { id: "point", title: "Point", lead: true, cell: ({ values }) => Object.entries(values).map(([key, value]) => `${names[key]}=${shown(value)}`).join(", ") || "the recipe's" },
    { id: "count", title: "Trials", numeric: true, cell: (row) => (row.missing ? `${count(row.numbers.length - row.missing)} of ${count(row.numbers.length)}` : count(row.numbers.length)) },
    { id: "mean", title: "Mean", numeric: true, cell: ({ spread: found }) => (found ? `${number(found.mean)}${known(found.std) ? ` ± ${number(found.std)}` : ""}` : null) },
    { id: "interval", title: "Values, or 95 % of the mean", numeric: true, cell: (row) => interval(row.spread) },
  ];
  return html`<${Section} title=${`${suite.objectives[0]?.metric ?? "Objective"} over seeds and folds`} flush>
    <${Table} caption="Points, the best mean first" columns=${columns} rows=${suite.points} rowKey=${(row) => row.group} cards /><//>`;
}

/** The state of one suite. */
export function Suite({ id }) {
  const loaded = useLive(link("data/suite", { id }), { isFinal: (suite) => !isActive(suite.state) });
  const suite = loaded.data;
  const trials = useTrials(id, suite !== null && !isActive(suite.state));
  const [within, choose] = useState({ isWithin: null }); // in an object: useState would call a function
  if (!suite) return html`<h1 class="sr-only">Suite</h1><${Missing} loaded=${loaded} />`;
  const refresh = () => { loaded.refresh(); trials.refresh(); };
  const objective = suite.objectives[0];
  document.title = `${suite.recipe} · ${words(suite.state)} · headrace`;
  return html`<p class="sr-only" role="status">${suite.recipe} ${words(suite.state)}</p>
    <${Trouble} loaded=${loaded} />
    <${Head} run=${suite} now=${suite.now} refresh=${refresh}><${Actions} suite=${suite} keys=${trials.data?.keys ?? []} refresh=${refresh} /><//>
    ${suite.damage && html`<${Notice} kind="warn" what=${suite.damage} />`}
    ${suite.why && !suite.damage && html`<${Notice} kind=${isActive(suite.state) ? "warn" : "bad"} what=${suite.why} />`}
    <${Figures} suite=${suite} />
    <${Counts} trials=${suite.trials} />
    <${Sites} suite=${suite} refresh=${refresh} />
    <${Running} suite=${suite} />
    <${Points} suite=${suite} />
    ${trials.data && html`<${Found} data=${trials.data} objective=${objective} logKeys=${suite.log_keys} />
      <${Parallel} data=${trials.data} objective=${objective} logKeys=${suite.log_keys} onChoose=${(isWithin) => choose({ isWithin })} />`}
    <${Trials} id=${id} loaded=${trials} objective=${objective} now=${suite.now} canAct=${suite.can_act} within=${within} />
    <${Report} of=${suite} />
    <${Acts} acts=${suite.acts} now=${suite.now} />`;
}

/** The page. */
export const SuitePage = () => html`<${Suite} id=${asked().get("id") ?? ""} />`;
