// Chooses the page by the last part of its path; all pages lie in one folder.

import { render } from "../vendor/preact.mjs";
import { Cost } from "./cost.js";
import { Datasets } from "./datasets.js";
import { Dask, TensorBoard } from "./framed.js";
import { Leases } from "./leases.js";
import { asked, link } from "./live.js";
import { Run } from "./run.js";
import { Runs } from "./runs.js";
import { SuitePage } from "./suite.js";
import { html } from "./ui.js";

const PAGES = {
  headrace: Runs, run: Run, suite: SuitePage, leases: Leases, datasets: Datasets, cost: Cost, dask: Dask, tensorboard: TensorBoard,
};
const ADDED = JSON.parse(document.getElementById("page").dataset.added); // of other packages
const TABS = [
  ["headrace", "Runs"],
  ["leases", "Leases"],
  ["datasets", "Datasets"],
  ["cost", "Cost"],
  ...ADDED,
];

const name = window.location.pathname.split("/").filter(Boolean).pop();
const isTab = asked().has("dag_run_id"); // inside a DAG run's page, which has its own navigation

const Top = () => html`<header class="top">
  <a class="brand" href=${link("")} aria-label="headrace, all runs">
    <svg viewBox="0 0 24 16" width="24" height="16" aria-hidden="true"><path d="M1 4c3.7 0 3.7 3 7.3 3s3.7-3 7.4-3S19.3 7 23 7M1 9.5c3.7 0 3.7 3 7.3 3s3.7-3 7.4-3 3.6 3 7.3 3" /></svg>
    headrace</a>
  <nav aria-label="headrace">${TABS.map(([path, title]) => html`<a key=${path} href=${link(path === "headrace" ? "" : `${path}/`)} aria-current=${path === name ? "page" : undefined}>${title}</a>`)}</nav>
</header>`;

const isAdded = ADDED.some(([path]) => path === name);
const Page = isAdded ? (await import(`../../added/${name}.js`)).default : PAGES[name] ?? Runs;

render(
  html`<a class="skip" href="#main">Skip to the content</a>
    ${!isTab && html`<${Top} />`}
    <main id="main" tabindex="-1"><${Page} /></main>`,
  document.getElementById("page"),
);
