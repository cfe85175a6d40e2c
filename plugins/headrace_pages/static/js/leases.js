// The page of leases: the machines that runs hold, what they wait for, and how to close them.

import { dollars, duration, known, words } from "./format.js";
import { link, useLive } from "./live.js";
import { Table, useSorted } from "./table.js";
import { Act, html, Meter, Missing, State, Time, Trouble } from "./ui.js";

const isOpen = (row) => row.state === "ready" || row.state === "starting";

const Name = ({ row }) => html`<span class="stack">
  ${row.run_id ? html`<a class="strong" href=${link("run/", { id: row.run_id })}>${row.lease_id}</a>` : html`<span class="strong">${row.lease_id}</span>`}
  ${row.has_dashboard && html`<a class="small" href=${link("dask/", { id: row.lease_id })} aria-label=${`Dask dashboard of ${row.lease_id}`}>Dask dashboard</a>`}
</span>`;

/** Seconds from the request to the end, or until now. */
function heldOf(row, now) {
  const end = isOpen(row) ? now : row.ended_at;
  return known(end) && known(row.created_at) ? end - row.created_at : null;
}

const Nodes = ({ row }) =>
  isOpen(row) && row.nodes
    ? html`<${Meter} value=${row.nodes_here / row.nodes} text=${`${row.nodes_here} of ${row.nodes}`} />`
    : null;

function Waits({ row, now }) {
  if (row.damage) return row.damage;
  if (row.waits_for) {
    const left = row.expected_start - now;
    return known(row.expected_start) && left > 0
      ? html`<span class="stack"><span>${row.waits_for}</span><span class="muted">in about ${duration(left)}</span></span>`
      : row.waits_for;
  }
  if (row.why_ended) return html`<span class="muted">${row.why_ended}</span>`;
  if (known(row.idle_s)) return html`<span class="muted">idle for ${duration(row.idle_s)}</span>`;
  return null;
}

const columnsOf = (now, canAct, refresh) => [
  { id: "lease", title: "Lease", lead: true, width: "24%", value: (row) => row.lease_id, cell: (row) => html`<${Name} row=${row} />` },
  { id: "state", title: "State", value: (row) => row.state, cell: (row) => html`<${State} of=${row.state} />` },
  { id: "kind", title: "Kind", value: (row) => row.kind, cell: (row) => html`<span class="stack"><span>${words(row.kind)}</span><span class="muted small">${row.role}</span></span>` },
  { id: "site", title: "Site", value: (row) => row.site, cell: (row) => html`<span class="stack"><span>${row.site}</span><span class="muted small">${row.backend}</span></span>` },
  { id: "nodes", title: "Nodes", width: "120px", value: (row) => row.nodes_here, cell: (row) => html`<${Nodes} row=${row} />` },
  { id: "waits", title: "Waits for, or why it ended", wide: true, width: "36%", cell: (row) => Waits({ row, now }) },
  { id: "usd", title: "Per hour", numeric: true, value: (row) => row.usd_per_hour, cell: (row) => (isOpen(row) ? dollars(row.usd_per_hour) : null) },
  { id: "held", title: "Held", numeric: true, value: (row) => heldOf(row, now), cell: (row) => duration(heldOf(row, now)) },
  { id: "since", title: "Requested", numeric: true, value: (row) => row.created_at, cell: (row) => html`<${Time} at=${row.created_at} now=${now} />` },
  {
    id: "close",
    title: "Close",
    hidden: true,
    cell: (row) => (canAct && isOpen(row)
      ? html`<${Act} label="Close" what=${row.lease_id} kind="danger" question="Close this lease?" address="act/lease" body=${{ id: row.lease_id }} onDone=${refresh}
          detail=${`${row.lease_id}: its machines are given back, and what runs on them ends.`} />`
      : null),
  },
];

/** The page. */
export function Leases() {
  const loaded = useLive(link("data/leases"));
  const rows = loaded.data?.rows ?? [];
  const columns = columnsOf(loaded.data?.now, loaded.data?.can_act, loaded.refresh);
  const sort = useSorted(rows, columns);
  const hourly = rows.filter(isOpen).reduce((sum, row) => sum + (row.usd_per_hour ?? 0), 0);
  document.title = "Leases · headrace";
  return html`<div class="title"><h1>Leases</h1>
      <p class="muted" role="status">${loaded.data ? `${rows.filter(isOpen).length} open${hourly ? `, ${dollars(hourly)} per hour` : ""}` : ""}</p></div>
    <${Trouble} loaded=${loaded} />
    ${loaded.data
      ? html`<div class="panel flush"><${Table} caption="Leases" columns=${columns} rows=${sort.rows} sort=${sort} rowKey=${(row) => row.lease_id} cards empty="No leases: no run holds machines." /></div>`
      : html`<${Missing} loaded=${loaded} />`}`;
}
