// The samples of a dataset, one at a time: pictures, waveforms, texts, figures.

import { useMemo, useState } from "../vendor/hooks.mjs";
import { Chart } from "./charts.js";
import { count, known, number } from "./format.js";
import { link, useLive, usePlace, useDebounced } from "./live.js";
import { html, Notice, Section } from "./ui.js";

const SMALL = 256; // pixels: smaller pictures are enlarged to that
const MOST_CLASSES = 1000; // in the choice of a class

const isStill = () => true;

const shapeOf = (drawn) => drawn.shape.join(" × ") || "scalar";

/** Further facts about an array. */
function About({ drawn }) {
  const facts = [`${shapeOf(drawn)} ${drawn.dtype}`];
  if (known(drawn.minimum)) facts.push(`${number(drawn.minimum)} to ${number(drawn.maximum)}, mean ${number(drawn.mean)}`);
  return html`<p class="muted small">${[...facts, ...drawn.notes].join("; ")}</p>`;
}

const Frames = ({ drawn, name, onFrame }) => html`<label class="frames small"><span class="number">Picture ${count(drawn.frame + 1)} of ${count(drawn.num_frames)}</span>
  <input type="range" min="0" max=${drawn.num_frames - 1} value=${drawn.frame} aria-label=${`Picture of ${name}`} onInput=${(event) => onFrame(Number(event.target.value))} /></label>`;

function Picture({ field, place, onFrame }) {
  const { drawn, name } = field;
  const scale = Math.max(1, Math.floor(SMALL / Math.max(drawn.width, drawn.height)));
  return html`<figure class="shown"><h3>${name}</h3>
    <img src=${`data:image/png;base64,${drawn.png}`} alt=${`${name} of ${place}, ${shapeOf(drawn)}`} class=${scale > 1 ? "enlarged" : ""}
      width=${scale > 1 ? drawn.width * scale : undefined} />
    ${drawn.num_frames > 1 && html`<${Frames} drawn=${drawn} name=${name} onFrame=${onFrame} />`}
    <${About} drawn=${drawn} /></figure>`;
}

function Waves({ field }) {
  const { drawn, name } = field;
  const lines = useMemo(() => drawn.waves.map(({ x, y }, nth) => ({ label: drawn.waves.length > 1 ? `channel ${nth}` : name, x, y })), [drawn]);
  return html`<div class="shown wide"><${Chart} title=${name} lines=${lines} xTitle=${drawn.x_unit} /><${About} drawn=${drawn} /></div>`;
}

function Words({ field }) {
  const { name, text, drawn } = field;
  const shown = drawn?.text ?? "";
  return html`<div class="shown"><h3>${name}</h3>
    ${known(text) && html`<p class="strong text">${text}${shown && html` <span class="muted">(${shown})</span>`}</p>`}
    ${!known(text) && shown && html`<p class="strong text code">${shown}</p>`}
    ${drawn && drawn.kind === "array" && html`<${About} drawn=${drawn} />`}</div>`;
}

function Field({ field, place, onFrame }) {
  if (field.problem) return html`<div class="shown"><h3>${field.name}</h3><p class="muted">${field.problem}</p></div>`;
  if (field.drawn?.png) return html`<${Picture} field=${field} place=${place} onFrame=${onFrame} />`;
  if (field.drawn?.waves.length) return html`<${Waves} field=${field} />`;
  return html`<${Words} field=${field} />`;
}

function Controls({ dataset, split, label, here, last, go }) {
  const { classes } = dataset.manifest;
  const canChoose = classes.length > 0 && classes.length <= MOST_CLASSES && dataset.manifest.fields.some((each) => each.name === "label");
  return html`
    <select aria-label="Split" value=${split} onChange=${(event) => go({ split: event.target.value, at: 0 })}>
      ${dataset.splits.filter((each) => each.num_samples > 0).map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
    </select>
    ${canChoose && html`<select aria-label="Class" value=${label} onChange=${(event) => go({ label: event.target.value, at: 0 })}>
      <option value="">all classes</option>
      ${classes.map((name, number) => html`<option key=${number} value=${String(number)}>${name}</option>`)}
    </select>`}
    <button type="button" disabled=${here <= 0} onClick=${() => go({ at: here - 1, isBack: true })}>Previous</button>
    <input type="number" aria-label="Number of the sample" min="0" max=${last} value=${here}
      onChange=${(event) => go({ at: Math.min(last, Math.max(0, Number(event.target.value) || 0)) })} />
    <button type="button" disabled=${here >= last} onClick=${() => go({ at: here + 1 })}>Next</button>`;
}

/** A view of any sample of a dataset. */
export function Samples({ dataset }) {
  const first = dataset.splits.find((each) => each.num_samples > 0)?.name ?? "";
  const [split, setSplit] = usePlace("split", first);
  const [at, setAt] = usePlace("at", "0");
  const [label, setLabel] = usePlace("class", "");
  const [how, setHow] = useState({ isBack: false, frame: 0 });
  const question = { id: dataset.fingerprint, split, index: at, label, back: (how.isBack && label) || "", frame: useDebounced(how.frame, 100) || "" };
  const loaded = useLive(first && link("data/sample", { ...question, back: question.back ? "true" : "" }), { isFinal: isStill });
  if (!first) return null;
  const sample = loaded.isStale ? null : loaded.data;
  const shown = sample ?? loaded.data;
  const here = sample ? sample.index : Number(at);
  const last = (dataset.splits.find((each) => each.name === split)?.num_samples ?? 1) - 1;
  const place = shown ? `sample ${count(shown.index)} of ${shown.split}` : "";

  function go(to) {
    if ("split" in to) setSplit(to.split);
    if ("label" in to) setLabel(to.label);
    setAt(String(to.at));
    setHow((old) => ({ isBack: Boolean(to.isBack), frame: "split" in to || "label" in to ? 0 : old.frame }));
  }

  return html`<${Section} title="Samples" aside=${html`<${Controls} dataset=${dataset} split=${split} label=${label} here=${here} last=${last} go=${go} />`}>
    ${loaded.error && !loaded.isStale && html`<${Notice} kind=${loaded.error.status === 404 ? "note" : "warn"} what=${loaded.error.what} hint=${loaded.error.hint} />`}
    ${shown && html`<div class=${`samples ${loaded.isStale ? "stale" : ""}`}>
      ${shown.fields.map((field) => html`<${Field} key=${`${shown.split} ${field.name}`} field=${field} place=${place} onFrame=${(frame) => setHow({ ...how, frame })} />`)}</div>`}
    <p class="muted small place" role="status">${shown ? html`${place}, ${count(shown.num_samples)} in all; <span class="code">${shown.source}</span> in <span class="code">${shown.shard}</span>` : loaded.error ? "" : "Loading…"}</p>
  <//>`;
}
