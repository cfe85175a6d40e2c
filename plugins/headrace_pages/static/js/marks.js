// Tags, note and star of a run, and how they are changed.

import { useState } from "../vendor/hooks.mjs";
import { act, Refused } from "./live.js";
import { html, Notice } from "./ui.js";

const KEPT_MS = 2100; // the server repeats an answer for two seconds

/** Star and tags, to read. */
export const Marked = ({ row }) => html`${row.is_starred && html`<span class="star" role="img" aria-label="starred">★</span> `}
  ${row.tags.map((tag) => html`<span class="tag" key=${tag}>${tag}</span> `)}`;

/** Star, tags and note of a run; with the right to act also their fields. */
export function Marks({ run, refresh }) {
  const [error, setError] = useState(null);
  const [note, setNote] = useState(null);
  const [tag, setTag] = useState("");

  async function mark(changes, onDone) {
    try {
      await act("act/mark", { ids: [run.run_id], ...changes });
      setError(null);
      onDone?.();
      setTimeout(refresh, KEPT_MS);
    } catch (wrong) {
      if (!(wrong instanceof Refused)) throw wrong;
      setError(wrong);
    }
  }
  const onSubmit = (changes, onDone) => (event) => {
    event.preventDefault();
    mark(changes, onDone);
  };
  if (!run.can_act) return html`<p class="facts"><span><${Marked} row=${run} /></span><span class="note-text">${run.note}</span></p>`;
  return html`<div class="facts">
    <button type="button" aria-pressed=${run.is_starred} aria-label="Star" onClick=${() => mark({ star: !run.is_starred })}>${run.is_starred ? "★" : "☆"}</button>
    ${run.tags.map((each) => html`<span class="tag" key=${each}>${each}<button type="button" class="plain" aria-label=${`Remove tag ${each}`} onClick=${() => mark({ untag: [each] })}>×</button></span>`)}
    <form onSubmit=${onSubmit({ tag: tag.split(/[\s,]+/).filter(Boolean) }, () => setTag(""))}>
      <input type="text" size="12" aria-label="New tag" placeholder="Add a tag" maxlength="200" value=${tag} onInput=${(event) => setTag(event.target.value)} /></form>
    ${note === null
      ? html`${run.note && html`<span class="note-text">${run.note}</span>`}<button type="button" class="plain" onClick=${() => setNote(run.note)}>${run.note ? "Edit note" : "Add a note"}</button>`
      : html`<form onSubmit=${onSubmit({ note }, () => setNote(null))}><textarea aria-label="Note" cols="36" rows="2" maxlength="2000" value=${note} onInput=${(event) => setNote(event.target.value)}></textarea>
          <button type="submit">Save note</button><button type="button" class="plain" onClick=${() => setNote(null)}>Keep as it is</button></form>`}
    ${error && html`<${Notice} kind="bad" what=${error.what} hint=${error.hint} />`}
  </div>`;
}
