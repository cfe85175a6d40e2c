// Adding trials to a suite: their values, their number, then the request.

import { useRef, useState } from "../vendor/hooks.mjs";
import { act, Refused } from "./live.js";
import { html, Notice } from "./ui.js";

const NOTHING = { busy: false, error: null, message: "", of: "" };

/** A button that opens a form for trials of suite `id`; `keys` are the keys that the suite varies. */
export function Add({ id, keys, onDone }) {
  const dialog = useRef(null);
  const [words, setWords] = useState("");
  const [priority, setPriority] = useState("");
  const [state, setState] = useState(NOTHING);
  const [done, setDone] = useState("");
  const example = `${keys[0] ?? "seed"}=1,2`;
  const isCounted = state.message !== "" && state.of === words;

  async function ask(preview) {
    setState({ ...NOTHING, busy: true });
    try {
      const body = { id, words, preview, priority: priority === "" ? null : Number(priority) };
      const answer = await act("act/suite/add", body);
      setState({ ...NOTHING, message: answer.done, of: words });
      if (preview) return;
      setDone(answer.done);
      setWords("");
      dialog.current.close();
      onDone();
    } catch (wrong) {
      if (!(wrong instanceof Refused)) throw wrong;
      setState({ ...NOTHING, error: wrong });
    }
  }

  const open = () => { setState(NOTHING); setDone(""); dialog.current.showModal(); };
  return html`<button type="button" onClick=${open}>Add trials</button>
    <span class="muted small done" role="status">${done}</span>
    <dialog ref=${dialog} aria-label="Add trials">
      <form class="form" onSubmit=${(event) => { event.preventDefault(); ask(!isCounted); }}>
        <h2>Add trials</h2>
        <label>Values, every combination of them
          <textarea rows="4" spellcheck="false" placeholder=${example} value=${words} onInput=${(event) => setWords(event.target.value)}></textarea></label>
        <p class="muted small">KEY=VALUE,VALUE … as for headrace suite add; seeds and folds are the suite's unless they are named.</p>
        <label>Priority <input type="number" step="1" placeholder="as the suite says" value=${priority} onInput=${(event) => setPriority(event.target.value)} /></label>
        ${state.error && html`<${Notice} kind="bad" what=${state.error.what} hint=${state.error.hint} />`}
        ${isCounted && html`<${Notice} what=${`${state.message}.`} />`}
        <div class="buttons">
          <button type="button" onClick=${() => dialog.current.close()}>Close</button>
          <button type="submit" class="primary" disabled=${state.busy || !words.trim()}>${isCounted ? "Add" : "Count them"}</button>
        </div>
      </form>
    </dialog>`;
}
