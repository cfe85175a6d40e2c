// The page of one run: its state, curves, machines, attempts and logs.

import { Curves } from "./charts.js";
import { bytes, costOf, count, duration, known, leftOf, number, percent, removedWords, words } from "./format.js";
import { asked, link, useLive } from "./live.js";
import { Logs } from "./logs.js";
import { Nodes, Timeline } from "./machines.js";
import { Acts, Head, Report } from "./run_parts.js";
import { Suite } from "./suite.js";
import { Table } from "./table.js";
import { Act, Copy, html, isActive, Missing, Notice, Progress, Section, Stat, State, Time, Trouble } from "./ui.js";

const isFinal = (run) => !isActive(run.state);
const plusMinus = (seconds) => (known(seconds) ? `± ${duration(seconds)}` : "");

function Why({ run }) {
  if (run.removed) return html`<${Notice} kind="warn" what=${`This run was ${removedWords(run.removed)}`} hint="What it cost and its metrics are kept." />`;
  if (run.damage) return html`<${Notice} kind="warn" what=${run.damage} />`;
  if (run.why) return html`<${Notice} kind=${isActive(run.state) || run.state === "cancelled" ? "warn" : "bad"} what=${run.why} />`;
  if (run.waits_for) return html`<${Notice} what="Waits" hint=${run.waits_for} />`;
  return null;
}

/** The newest value of a measured metric, for a run whose main metric the server does not name. */
function newest(run) {
  const measured = run.curves.series.filter((each) => each.kind === "metric");
  const series = measured.find((each) => each.name.startsWith("val")) ?? measured[0];
  return series && { name: series.name, value: series.y.at(-1) };
}

/** The throughput of the running step, or of the training of a run that has ended; null if unknown. */
function rateOf(run, step) {
  if (!isActive(run.state) || step?.name === "train") {
    return known(run.throughput) ? { value: run.throughput, of: "samples, in train" } : null;
  }
  return known(step?.status?.rate) ? { value: step.status.rate, of: `${step.status.progress.unit}, in ${words(step.name)}` } : null;
}

/** How far a running step is: `epoch 3/15`, or `120 of 400 samples`. */
function placeOf(step) {
  const progress = step?.status?.progress;
  if (!progress || step.state !== "running") return "";
  return progress.phase || (progress.done ? `${count(progress.done)}${known(progress.total) ? ` of ${count(progress.total)}` : ""} ${progress.unit}` : "");
}

/** Attempts, a running one as its files say: the ledger learns of its start later. */
function attemptsOf(run) {
  return run.attempts.map((each) => {
    const step = isActive(each.state) && run.steps.find((one) => one.name === each.step && one.attempt === each.attempt);
    return step ? { ...each, state: step.state, started_at: each.started_at ?? step.started_at } : each;
  });
}

function Figures({ run }) {
  const step = run.steps.find((each) => each.state === "running") ?? run.steps.findLast((each) => each.state);
  const metric = run.metric ?? newest(run);
  const { best } = run;
  const left = leftOf({ eta_s: run.eta_s, step_eta_s: step?.eta_s, step: step?.name });
  const foretold = [left.of && `${left.of} ${plusMinus(run.ahead?.eta_half_s)}`.trim(), left.part].filter(Boolean).join("; ") || "no earlier run";
  const rate = rateOf(run, step);
  const ends = isActive(run.state)
    ? html`<${Stat} name="Left" value=${left.value}>${foretold}<//>
      <${Stat} name="Elapsed" value=${duration(run.elapsed_s)} />`
    : html`<${Stat} name="Took" value=${duration(run.elapsed_s)}>${known(run.ahead?.predicted_s) && `expected ${duration(run.ahead.predicted_s)}`}<//>`;
  return html`<dl class="panel stats">
    <${Stat} name=${isActive(run.state) ? "Step" : "Last step"} value=${words(step?.name) || "none yet"}>${(isActive(run.state) && placeOf(step)) || words(step?.state)}<//>
    ${ends}
    ${known(run.epoch) && !isActive(run.state) && html`<${Stat} name="Epochs" value=${count(run.epoch + 1)} />`}
    ${known(metric?.value) && html`<${Stat} name="Newest value" value=${number(metric.value)}>${metric.name}<//>`}
    ${best && html`<${Stat} name="Best value" value=${number(best.value)}>${best.name}${known(best.step) ? `, step ${count(best.step)}` : ""}<//>`}
    ${rate && html`<${Stat} name="Throughput" value=${`${number(rate.value)}/s`}>${rate.of}<//>`}
    ${known(run.data_wait) && step?.name === "train" && html`<${Stat} name="Waits for data" value=${percent(run.data_wait)}>of the time<//>`}
    ${run.cost && html`<${Stat} name="Cost" value=${costOf(run)} />`}
  </dl>`;
}

function stepNote(step) {
  return step.state && known(step.elapsed_s) ? duration(step.elapsed_s) : "";
}

const Steps = ({ steps }) => html`<ol class="steps panel flush" aria-label="Steps">${steps.map((step) => html`<li key=${step.name}
    aria-current=${step.state === "running" ? "step" : undefined}>
  <span class="row"><span class="strong">${words(step.name)}</span><${State} of=${step.state ?? ""} /></span>
  <${Progress} value=${step.state === "succeeded" ? 1 : step.progress} state=${step.state} label=${`Progress of ${step.name}`} />
  <span class="row small muted number"><span>${stepNote(step)}</span>
    <span>${step.attempt > 1 ? ` attempt ${step.attempt}` : ""}</span></span>
</li>`)}</ol>`;

const attemptColumns = (now) => [
  { id: "step", title: "Step", lead: true, cell: (row) => html`<span class="strong">${words(row.step)}</span> <span class="muted">${row.attempt}</span>` },
  { id: "state", title: "State", cell: (row) => html`<${State} of=${row.state} />` },
  { id: "why", title: "Cause", wide: true, cell: (row) => (row.failure_class || row.message
    ? html`${row.failure_class && row.failure_class !== row.state && html`<span class="tag">${words(row.failure_class)}</span> `}${row.message}` : null) },
  { id: "node", title: "Node", cell: (row) => row.node || null },
  { id: "started", title: "Began", numeric: true, cell: (row) => html`<${Time} at=${row.started_at ?? row.created_at} now=${now} />` },
  { id: "took", title: "Took", numeric: true, cell: (row) => (known(row.started_at) ? duration((row.finished_at ?? now) - row.started_at) : null) },
];

const checkpointColumns = (now) => [
  { id: "name", title: "Checkpoint", cell: (row) => html`<span class="code">${row.name}</span>${row.is_best && html` <span class="tag good">best</span>`}` },
  { id: "step", title: "Step", numeric: true, cell: (row) => count(row.step) },
  { id: "size", title: "Size", numeric: true, cell: (row) => bytes(row.bytes) },
  { id: "at", title: "Written", numeric: true, cell: (row) => html`<${Time} at=${row.at} now=${now} />` },
];

const traceColumns = [
  { id: "path", title: "Profile", lead: true, cell: (row) => html`<span class="code">${row.path}</span>` },
  { id: "open", title: "Opened by", wide: true, cell: (row) => html`<span class="code">${row.opened_by}</span> <${Copy} text=${row.opened_by} what="the command" />` },
];

function Cancel({ run, refresh }) {
  const [id, trial] = run.run_id.split(":");
  const given = trial ? { address: "act/suite", body: { id, what: "cancel", trials: [Number(trial)] } } : { address: "act/cancel", body: { id } };
  const what = trial ? "trial" : "run";
  return html`<${Act} label=${`Cancel ${what}`} question=${`Cancel this ${what}?`} kind="danger" ...${given} onDone=${refresh}
    detail=${trial ? "It saves a checkpoint and stops. Run it again on the suite's page." : "Its running step saves a checkpoint and stops; its machines are released. Resume it later: headrace resume."} />`;
}

const Actions = ({ run, refresh }) => html`
  ${run.dashboard_lease && html`<a href=${link("dask/", { id: run.dashboard_lease })}>Dask dashboard</a>`}
  ${run.tensorboard && html`<a href=${link("tensorboard/", { id: run.run_id })}>TensorBoard</a>`}
  <${Copy} label="Copy rerun command" kind="" text=${run.rerun} />
  ${run.can_act && isActive(run.state) && html`<${Cancel} run=${run} refresh=${refresh} />`}`;

const Addresses = ({ run }) => html`<p class="facts">
  <span>Folder <span class="code">${run.folder}</span> <${Copy} text=${run.folder} what="the folder" /></span>
  ${Object.entries(run.images).map(([image, digest]) => html`<span>Image <span class="code">${image}</span> (${digest})</span>`)}
</p>`;

function Whole({ run, refresh }) {
  const begun = attemptsOf(run);
  const attempts = [...begun].reverse();
  const trains = run.steps.some((each) => each.name === "train");
  return html`<${Head} run=${run} now=${run.now} refresh=${refresh}><${Actions} run=${run} refresh=${refresh} /><//>
    <${Why} run=${run} />
    <${Figures} run=${run} />
    <${Steps} steps=${run.steps} />
    ${trains && html`<${Section} title="Training"><${Curves} runs=${[run.curves]} /><//>`}
    ${run.use.nodes.length > 0 && html`<${Section} title="Nodes and ranks" flush><${Nodes} use=${run.use} /><//>`}
    ${attempts.length > 0 && html`<${Section} title="Timeline"><${Timeline} attempts=${begun} now=${run.now} /><//>`}
    <div class=${trains ? "beside" : ""}>
      <${Section} title="Attempts" flush><${Table} caption="Attempts, the newest first" columns=${attemptColumns(run.now)} rows=${attempts} rowKey=${(row) => `${row.step}/${row.attempt}/${row.lease_id}`} cards empty="None yet." /><//>
      ${trains && html`<${Section} title="Checkpoints" flush><${Table} caption="Checkpoints" columns=${checkpointColumns(run.now)} rows=${run.checkpoints} rowKey=${(row) => row.name} empty="None yet." /><//>`}
    </div>
    ${run.traces.length > 0 && html`<${Section} title="Profiles" flush><${Table} caption="Profiles and traces" columns=${traceColumns} rows=${run.traces} rowKey=${(row) => row.path} cards /><//>`}
    <${Logs} run=${run} />
    <${Report} of=${run} />
    <${Acts} acts=${run.acts} now=${run.now} />
    <${Addresses} run=${run} />`;
}

/** The page. */
export function Run() {
  const place = asked();
  const given = Object.fromEntries(["id", "dag_id", "dag_run_id"].map((name) => [name, place.get(name) ?? ""]));
  const loaded = useLive(link("data/run", given), { isFinal });
  const run = loaded.data;
  document.title = `${run ? `${run.recipe} · ${words(run.state)}` : "Run"} · headrace`;
  if (!run) return html`<h1 class="sr-only">Run</h1><${Missing} loaded=${loaded} />`;
  if (run.kind === "suite") return html`<${Suite} id=${run.run_id} />`;
  return html`<p class="sr-only" role="status">${run.recipe} ${words(run.state)}</p>
    <${Trouble} loaded=${loaded} /><${Whole} run=${run} refresh=${loaded.refresh} />`;
}
