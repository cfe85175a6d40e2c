// Parts of the pages of runs and of suites.

import { bytes, known, removedWords } from "./format.js";
import { asked, link, ROOT } from "./live.js";
import { Marks } from "./marks.js";
import { Table } from "./table.js";
import { Copy, html, Notice, Section, State, Time } from "./ui.js";

/** Name, state and origin of a run or suite, with buttons for actions. */
export const Head = ({ run, now, refresh, children }) => html`<div class="title">
  ${!asked().has("dag_run_id") && html`<p class="crumb"><a href=${link("")}>Runs</a>${run.kind === "trial" && html` / <a href=${link("suite/", { id: run.run_id.split(":")[0] })}>Suite</a>`}</p>`}
  <h1>${run.recipe}${run.kind === "trial" && `, trial ${run.run_id.split(":")[1]}`}</h1>
  <${State} of=${run.state} big />
  <div class="buttons">${children}</div>
  <p class="facts">
    <span><span class="code">${run.run_id}</span> <${Copy} text=${run.run_id} what="the id" /></span>
    <span>on ${run.site}</span>
    ${run.user && html`<span>by ${run.user}</span>`}
    <span>started <${Time} at=${run.created_at} now=${now} /></span>
    ${run.dataset && html`<span>dataset <a href=${link("datasets/", { id: run.dataset })}>${run.dataset}</a></span>`}
    ${known(run.seed) && html`<span>seed ${run.seed}</span>`}
    ${known(run.num_bytes) && html`<span>${bytes(run.num_bytes)} on disk</span>`}
    ${run.own_data && html`<span>no dataset: nothing is packed or staged</span>`}
  </p>
  ${run.overrides.length > 0 && html`<p class="facts" aria-label="Overrides">${run.overrides.map((each) => html`<span class="tag code" key=${each}>${each}</span>`)}</p>`}
  ${run.kind !== "trial" && html`<${Marks} run=${run} refresh=${refresh} />`}
</div>
${run.removed && html`<${Notice} kind="warn" what=${`This run was ${removedWords(run.removed)}`} hint="What it cost and its metrics are kept." />`}`;

const actColumns = (now) => [
  { id: "at", title: "When", lead: true, cell: (row) => html`<${Time} at=${row.at} now=${now} />` },
  { id: "who", title: "Who", cell: (row) => `${row.user || "unknown"}${row.through === "Airflow" ? " in " : "@"}${row.through}` },
  { id: "what", title: "What", cell: (row) => html`${row.what}${row.refused && html` <span class="tag">refused</span>`}` },
  { id: "details", title: "Details", wide: true, cell: (row) => [row.details, row.refused].filter(Boolean).join("; ") || null },
];

/** User actions on a run or suite. */
export const Acts = ({ acts, now }) => html`<${Section} title="Who did what" flush>
  <${Table} caption="Who did what, the newest first" columns=${actColumns(now)} rows=${acts} rowKey=${(row) => `${row.at}/${row.what}`} cards empty="No actions." /><//>`;

/** The report at the end, if there is one. */
export const Report = ({ of: { report } }) =>
  report
    ? html`<${Section} title="Report" flush aside=${html`<a href=${ROOT + report} download>Download</a>`}>
        <iframe class="report" title="Report" src=${ROOT + report} sandbox="" loading="lazy"></iframe><//>`
    : null;
