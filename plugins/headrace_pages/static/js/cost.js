// The page of costs: what machines took, by month, user and so on, and how much of the budgets is spent.

import { dollars, duration, known, number, percent, UNKNOWN } from "./format.js";
import { link, useLive, usePlace } from "./live.js";
import { Table, useSorted } from "./table.js";
import { Choice, html, Meter, Missing, Section, Stat, Time, Trouble } from "./ui.js";

const WAYS = [
  ["month", "Month"],
  ["user", "User"],
  ["site", "Site"],
  ["cause", "Cause"],
  ["run", "Run"],
];

const sum = (rows, name) => rows.reduce((total, row) => total + (row[name] ?? 0), 0);

function columnsOf(title, rows) {
  const most = Math.max(0, ...rows.map((row) => row.usd ?? 0));
  const hours = (id, shown) => ({ id, title: shown, numeric: true, value: (row) => row[id], cell: (row) => number(row[id]) });
  return [
    { id: "name", title, lead: true, value: (row) => row.name, cell: (row) => html`<span class="strong">${row.name || "none"}</span>` },
    {
      id: "usd",
      title: "Cost",
      numeric: true,
      wide: true,
      width: "34%",
      value: (row) => row.usd,
      cell: (row) => (row.unknown && !row.usd ? html`<span class="muted">price unknown</span>`
        : html`<${Meter} value=${most ? row.usd / most : 0} text=${`${row.unknown ? "at least " : ""}${dollars(row.usd)}`} />`),
    },
    hours("hours", "Node hours"),
    hours("gpu_hours", "GPU hours"),
    { id: "kwh", title: "kWh", numeric: true, value: (row) => row.kwh, cell: (row) => (known(row.kwh) ? html`<span title=${`measured in ${percent(row.measured_share)} of the node hours`}>${number(row.kwh)}</span>` : UNKNOWN) },
    { id: "wasted_share", title: "Wasted", numeric: true, value: (row) => row.wasted_share, cell: (row) => percent(row.wasted_share) },
  ];
}

const Totals = ({ rows, asOf, usd = sum(rows, "usd"), isPart = rows.some((row) => row.unknown) }) => html`<dl class="panel stats">
  <${Stat} name="Cost" value=${isPart && !usd ? undefined : dollars(usd)}>${isPart ? (usd ? "without unknown prices" : "prices unknown") : ""}<//>
  <${Stat} name="Node hours" value=${number(sum(rows, "hours"))} />
  <${Stat} name="GPU hours" value=${number(sum(rows, "gpu_hours"))} />
  ${known(asOf) && html`<${Stat} name="As of" value=${html`<${Time} at=${asOf} now=${Date.now() / 1000} />`}>for active runs<//>`}
</dl>`;

const Budget = ({ budget }) => {
  const share = budget.spent / budget.most;
  const tone = share > 1 ? "tone-bad" : share > 0.8 ? "tone-warn" : "tone-good";
  const shown = (value) => (budget.unit === "usd" ? dollars(value) : `${number(value)} GPU hours`);
  return html`<li class=${tone}><span class="row"><span class="strong">${budget.site}${budget.whose && `, ${budget.key.endsWith("_team") ? "team " : ""}${budget.whose}`}</span>
      <span class="number">${shown(budget.spent)} of ${shown(budget.most)}</span></span>
    <${Meter} value=${share} />
    <span class="small muted">${share > 1 ? "overspent" : `${shown(budget.most - budget.spent)} left`}, this month</span></li>`;
};

const median = (values) => values.sort((one, other) => one - other)[Math.floor((values.length - 1) / 2)];
const off = (row) => row.took_s / row.expected_s - 1;
const signed = (share) => `${share < 0 ? "−" : "+"}${percent(Math.abs(share))}`;

const PREDICTED = [
  { id: "run", title: "Run", lead: true, wide: true, value: (row) => row.run_id, cell: (row) => html`<span class="stack"><a class="strong" href=${link("run/", { id: row.run_id })}>${row.recipe}</a><span class="muted small code">${row.run_id}</span></span>` },
  { id: "site", title: "Site", value: (row) => row.site, cell: (row) => row.site },
  { id: "expected", title: "Expected", numeric: true, value: (row) => row.expected_s, cell: (row) => html`<span class="stack"><span>${duration(row.expected_s)}</span>${known(row.expected_half_s) && html`<span class="muted small">± ${duration(row.expected_half_s)}</span>`}</span>` },
  { id: "took", title: "Took", numeric: true, value: (row) => row.took_s, cell: (row) => duration(row.took_s) },
  { id: "off", title: "Difference", numeric: true, value: off, cell: (row) => signed(off(row)) },
  { id: "expected_usd", title: "Expected cost", numeric: true, value: (row) => row.expected_usd, cell: (row) => dollars(row.expected_usd) },
  { id: "usd", title: "Cost", numeric: true, value: (row) => row.usd, cell: (row) => dollars(row.usd) },
];

function Predicted({ rows }) {
  const sort = useSorted(rows, PREDICTED);
  const aside = rows.length > 0 && html`<span class="muted">half of them off by ${percent(median(rows.map((row) => Math.abs(off(row)))))} or less</span>`;
  return html`<${Section} title="Expected and taken" aside=${aside} flush>
    <${Table} caption="Expected and taken" columns=${PREDICTED} rows=${sort.rows} sort=${sort} rowKey=${(row) => row.run_id} cards empty="No predictions yet: a recipe's first run on a site has none." />
  <//>`;
}

/** The page. */
export function Cost() {
  const [by, setBy] = usePlace("by", "month");
  const loaded = useLive(link("data/cost", { by }));
  const rows = loaded.data?.rows ?? [];
  const title = WAYS.find(([each]) => each === loaded.data?.by)?.[1] ?? "";
  const columns = columnsOf(title, rows);
  const sort = useSorted(rows, columns);
  document.title = "Cost · headrace";
  return html`<div class="title"><h1>Cost</h1><div class="filters"><${Choice} label="Cost by" options=${WAYS} value=${by} onChange=${setBy} /></div></div>
    <${Trouble} loaded=${loaded} />
    ${loaded.data
      ? html`<${Totals} rows=${rows} asOf=${loaded.data.as_of} />
        ${loaded.data.budgets.length > 0 && html`<${Section} title="Budgets" flush><ul class="running">${loaded.data.budgets.map((budget) => html`<${Budget} key=${`${budget.key} ${budget.site} ${budget.whose}`} budget=${budget} />`)}</ul><//>`}
        <${Section} title=${`By ${title.toLowerCase()}`} flush><p class="muted small empty">Wasted: the share of the node hours in which machines were idle, or ran attempts that did not succeed.</p><${Table} caption=${`Cost by ${title.toLowerCase()}`} columns=${columns} rows=${sort.rows} sort=${sort} rowKey=${(row) => row.name} cards empty="No costs are recorded yet." /><//>
        <${Predicted} rows=${loaded.data.foretold} />`
      : html`<${Missing} loaded=${loaded} />`}`;
}
