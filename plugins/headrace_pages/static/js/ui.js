// Small parts of all pages. Text of users reaches the page as text nodes only.

import htm from "../vendor/htm.mjs";
import { useEffect, useRef, useState } from "../vendor/hooks.mjs";
import { h } from "../vendor/preact.mjs";
import { moment, percent, known, UNKNOWN, when, words } from "./format.js";
import { act, Refused } from "./live.js";

export const html = htm.bind(h);

const TONES = {
  running: "active",
  starting: "active",
  open: "active",
  opening: "active",
  succeeded: "good",
  ready: "good",
  failed: "bad",
  lost: "bad",
  refused: "bad",
  preempted: "warn",
  paused: "warn",
  unreachable: "warn",
  timed_out: "warn",
};

/** Whether the state may still change. */
export const isActive = (state) => state === "queued" || state === "running";

/** Tone of a state: names its colour. */
export const tone = (state) => TONES[state] ?? "quiet";

/** A state as dot and word. */
export const State = ({ of, big }) =>
  html`<span class=${`state tone-${tone(of)} ${big ? "big" : ""}`} data-state=${of}>${words(of) || "not begun"}</span>`;

/** Progress as bar and number. `value` is a share of 1, null if unknown. */
export function Progress({ value, label, state = "running" }) {
  const now = known(value) ? Math.min(1, Math.max(0, value)) : null;
  const percentNow = now === null ? undefined : Math.round(now * 100);
  return html`<span class="progress">
    <span class=${`bar tone-${tone(state)} ${now === null ? "unknown" : ""}`} role="progressbar"
      aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${percentNow}>
      <span style=${{ width: `${percentNow ?? 0}%` }}></span>
    </span>
    <span class="number">${now === null ? "" : percent(now)}</span>
  </span>`;
}

/** A share of 1 as a small bar behind its number. */
export const Meter = ({ value, text }) => html`<span class="meter">
  <span class="bar" aria-hidden="true"><span style=${{ width: `${Math.min(1, value ?? 0) * 100}%` }}></span></span>
  <span class="number">${text ?? percent(value)}</span>
</span>`;

/** One figure with its name, and a remark. */
export const Stat = ({ name, value, children }) => html`<div class="stat">
  <dt>${name}</dt>
  <dd><span class="value">${value ?? UNKNOWN}</span>${children && html`<span class="note">${children}</span>`}</dd>
</div>`;

/** A moment, short; complete in the title. */
export const Time = ({ at, now }) =>
  known(at)
    ? html`<time datetime=${new Date(at * 1000).toISOString()} title=${moment(at)}>${when(at, now)}</time>`
    : UNKNOWN;

/** A message: `kind` is `bad`, `warn` or `note`. */
export const Notice = ({ kind = "note", what, hint }) =>
  html`<div class=${`notice ${kind}`} role=${kind === "bad" ? "alert" : "status"}>
    <p>${what}</p>${hint && html`<p class="muted">${hint}</p>`}
  </div>`;

/** A part of a page with a heading. */
export const Section = ({ title, aside, children, flush }) => html`<section class="section">
  <header><h2>${title}</h2><div class="aside">${aside}</div></header>
  <div class=${`panel ${flush ? "flush" : ""}`}>${children}</div>
</section>`;

/** A choice of a few: buttons side by side. `options` are pairs of value and words. */
export const Choice = ({ label, options, value, onChange }) => html`<div class="choice" role="group" aria-label=${label}>
  ${options.map(([each, shown]) => html`<button type="button" key=${each} aria-pressed=${each === value}
    onClick=${() => onChange(each)}>${shown}</button>`)}
</div>`;

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // missing on plain http, or not allowed in a frame
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

/** A button that copies a text. */
export function Copy({ text, label = "Copy", what, kind = "plain" }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const shown = done ? "Copied" : label;
  return html`<button type="button" class=${kind} aria-label=${what && `${shown} ${what}`} title=${text}
    onClick=${() => copyText(text).then(() => setDone(true))}>${shown}</button>`;
}

/** A button that asks for confirmation and for `children`, requests an action, and shows an error. */
export function Act({ label, what, question, detail, address, body, kind = "", onDone, children }) {
  const dialog = useRef(null);
  const [state, setState] = useState({ busy: false, error: null, done: "" });

  async function go() {
    setState({ busy: true, error: null, done: "" });
    try {
      const { done } = await act(address, body);
      dialog.current?.close();
      setState({ busy: false, error: null, done });
      onDone?.();
    } catch (wrong) {
      if (!(wrong instanceof Refused)) throw wrong;
      setState({ busy: false, error: wrong, done: "" });
    }
  }

  return html`<button type="button" class=${kind} aria-label=${what && `${label} ${what}`} onClick=${() => { setState({ busy: false, error: null, done: "" }); dialog.current.showModal(); }}>${label}</button>
    <span class="muted small done" role="status">${state.done}</span>
    <dialog ref=${dialog} aria-label=${question}>
      <h2>${question}</h2>
      <p class="muted">${detail}</p>
      ${children}
      ${state.error && html`<${Notice} kind="bad" what=${state.error.what} hint=${state.error.hint} />`}
      <div class="buttons">
        <button type="button" onClick=${() => dialog.current.close()}>Keep as it is</button>
        <button type="button" class=${kind || "primary"} disabled=${state.busy} onClick=${go}>${label}</button>
      </div>
    </dialog>`;
}

/** A message in place of missing data; null if there is data. */
export function Missing({ loaded }) {
  if (loaded.error && !loaded.data) {
    return html`<${Notice} kind=${loaded.error.status === 404 ? "warn" : "bad"} what=${loaded.error.what} hint=${loaded.error.hint} />`;
  }
  return html`<p class="muted loading" role="status">Loading…</p>`;
}

/** A message on top of data that can no longer be updated. */
export const Trouble = ({ loaded }) =>
  loaded.error && loaded.data
    ? html`<${Notice} kind="warn" what=${loaded.error.what} hint=${`${loaded.error.hint}${known(loaded.data.now) ? ` The data is of ${moment(loaded.data.now)}.` : ""}`} />`
    : null;
