// Filters of the list of runs, kept in the page's address, so that a view can be sent to others.

import { useState } from "../vendor/hooks.mjs";
import { link, usePlace, useDebounced } from "./live.js";
import { Choice, html } from "./ui.js";

const STATES = [
  ["", "All"],
  ["queued,running", "Active"],
  ["succeeded", "Succeeded"],
  ["failed,lost,timed_out,preempted", "Failed"],
  ["cancelled", "Cancelled"],
];

/** Further filters: name in the address, title, example, and what separates several values. */
const FIELDS = [
  { name: "user", title: "User", hint: "ada" },
  { name: "recipe", title: "Recipe", hint: "digits" },
  { name: "tag", title: "Tag", hint: "baseline" },
  { name: "where", title: "Key or metric", hint: "lr=0.1 accuracy>0.9", separator: /\s+/ },
  { name: "since", title: "From day (UTC)", type: "date" },
  { name: "until", title: "To day (UTC)", type: "date" },
  { name: "best", title: "Sort by metric", hint: "val_loss", ask: "sort" },
  { name: "starred", title: "Starred only", type: "checkbox", on: "true" },
  { name: "kind", title: "Packings too", type: "checkbox", on: "all" },
];

/** The filters: `address(limit)` of the request, `isAny`, and what `Filters` needs. */
export function useFilters() {
  const state = usePlace("state", "");
  const text = usePlace("text", "");
  const fields = FIELDS.map((field) => ({ ...field, place: usePlace(field.name, "") }));
  const wanted = { state: state[0].split(","), text: text[0] };
  for (const { name, ask = name, separator = /[\s,]+/, place } of fields) wanted[ask] = place[0].split(separator);
  const asked = useDebounced(link("data/runs", wanted));
  const used = fields.filter(({ place }) => place[0]).length;
  const clear = () => [state, text, ...fields.map(({ place }) => place)].forEach(([, set]) => set(""));
  return { address: (limit) => `${asked}${asked.includes("?") ? "&" : "?"}limit=${limit}`, state, text, fields, used, clear, isAny: Boolean(state[0] || text[0] || used) };
}

function Field({ field: { title, hint, type = "text", on, place: [value, set] } }) {
  if (on) return html`<label class="check"><input type="checkbox" checked=${value === on} onChange=${(event) => set(event.target.checked ? on : "")} /> ${title}</label>`;
  return html`<label class="stack"><span class="small muted">${title}</span>
    <input type=${type} placeholder=${hint} value=${value} spellcheck=${false} onInput=${(event) => set(event.target.value)} /></label>`;
}

/** State and search; the others behind a button. */
export function Filters({ filters }) {
  const { state: [state, setState], text: [text, setText], fields, used, clear, isAny } = filters;
  const [isOpen] = useState(used > 0); // from then on as the reader leaves it
  return html`<div class="filters">
      <${Choice} label="State" options=${STATES} value=${state} onChange=${setState} />
      <input type="search" aria-label="Search in id, recipe, site, user, dataset, overrides, tags and note" placeholder="Search" value=${text}
        onInput=${(event) => setText(event.target.value)} />
    </div>
    <details class="more-filters" open=${isOpen}><summary class="muted">Filters and order${used ? ` (${used})` : ""}</summary>
      <div class="fields">${fields.map((field) => html`<${Field} key=${field.name} field=${field} />`)}
        <button type="button" disabled=${!isAny} onClick=${clear}>Clear all</button></div>
    </details>`;
}
