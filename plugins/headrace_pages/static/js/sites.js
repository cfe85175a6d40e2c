// The sites of a suite over several: what each does, costs and takes, and actions on it.

import { useState } from "../vendor/hooks.mjs";
import { count, dollars, duration, known } from "./format.js";
import { link } from "./live.js";
import { Table } from "./table.js";
import { Act, html, isActive, Progress, Section, State } from "./ui.js";

const MOST = 1000000; // trials at once, as the server checks

const priceOf = ({ usd_per_hour: price }) => (price === 0 ? "free" : dollars(price));

const Name = ({ row }) => html`<span class="stack">
  ${row.run_id ? html`<a class="strong" href=${link("run/", { id: row.run_id })}>${row.site}</a>` : html`<span class="strong">${row.site}</span>`}
  <span class="muted small">${row.is_own ? "own" : "rented"}</span></span>`;

const Running = ({ row }) => html`<span class="stack"><span>${count(row.running)} of ${count(Math.min(row.slots, row.limit ?? row.slots))}</span>
  ${known(row.limit) && html`<span class="muted small">limited from ${count(row.slots)}</span>`}</span>`;

const Cost = ({ row }) => html`<span class="stack"><span>${dollars(row.usd)}</span>
  ${known(row.expected_usd) && html`<span class="muted small">of ${dollars(row.expected_usd)}</span>`}</span>`;

function Actions({ suite, row, refresh }) {
  const [limit, setLimit] = useState(String(row.limit ?? ""));
  const given = (what, more) => ({ what: row.site, address: "act/suite", body: { id: suite.run_id, what, site: row.site, ...more }, onDone: refresh });
  return html`<span class="buttons">
    ${row.state === "paused"
      ? html`<${Act} key="resume" ...${given("resume-site")} label="Resume" question=${`Start trials on ${row.site} again?`} detail="The plan uses the site again." />`
      : html`<${Act} key="pause" ...${given("pause-site")} label="Pause" question=${`Pause ${row.site}?`} detail="Its running trials continue; no more start there until it is resumed." />`}
    <${Act} ...${given("limit-site", { limit: limit === "" ? null : Number(limit) })} label="Limit" question=${`How many trials may ${row.site} run at once?`} detail="Running trials continue.">
      <label>Most trials at once <input type="number" min="1" max=${MOST} step="1" placeholder="no limit" value=${limit} onInput=${(event) => setLimit(event.target.value)} /></label><//>
    <${Act} ...${given("leave-site")} label="Move off" kind="danger" question=${`Move all trials off ${row.site}?`}
      detail="Its running trials are stopped and continue on other sites from their last checkpoints. It stays paused until it is resumed." />
  </span>`;
}

/** Forecasts by policy: SVG of the server, whose only texts are its own. */
const Picture = ({ suite }) => suite.picture && html`<${Section} title="Deadline against dollars">
  <figure class="frontier" dangerouslySetInnerHTML=${{ __html: suite.picture }}></figure>
  <p class="muted small">Forecasts at the start, with intervals of 80 %. ${isActive(suite.state) && "The ring is what is expected now."}</p><//>`;

/** A lane for each site; nothing for a suite of one site. */
export function Sites({ suite, refresh }) {
  if (!suite.sites.length) return null;
  const goesOn = isActive(suite.state);
  const done = ({ ended, running, assigned }) => (ended + running + assigned > 0 ? ended / (ended + running + assigned) : null);
  const columns = [
    { id: "site", title: "Site", lead: true, cell: (row) => html`<${Name} row=${row} />` },
    { id: "state", title: "State", cell: (row) => html`<${State} of=${row.state} />` },
    { id: "done", title: "Progress", width: "130px", cell: (row) => html`<${Progress} value=${done(row)} label=${`Progress on ${row.site}`} />` },
    { id: "running", title: "Running", numeric: true, cell: (row) => html`<${Running} row=${row} />` },
    { id: "waiting", title: "Waiting", numeric: true, cell: (row) => count(row.assigned) },
    { id: "ended", title: "Ended", numeric: true, cell: (row) => count(row.ended) },
    { id: "price", title: "Slot per hour", numeric: true, cell: priceOf },
    { id: "usd", title: "Cost, of expected", numeric: true, cell: (row) => html`<${Cost} row=${row} />` },
    { id: "left", title: "Left", numeric: true, cell: (row) => (goesOn ? duration(row.eta_s) : null) },
    { id: "why", title: "Why", wide: true, cell: (row) => row.why },
    { id: "acts", title: "Actions", hidden: true, wide: true, cell: (row) => (suite.can_act && goesOn ? html`<${Actions} suite=${suite} row=${row} refresh=${refresh} />` : null) },
  ];
  return html`<${Section} title="Sites" flush>
    <${Table} caption="Sites" columns=${columns} rows=${suite.sites} rowKey=${(row) => row.site} cards /><//>
    <${Picture} suite=${suite} />`;
}
