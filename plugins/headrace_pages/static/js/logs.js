// The end of any log of a run.

import { useEffect, useRef, useState } from "../vendor/hooks.mjs";
import { words } from "./format.js";
import { link, useLive } from "./live.js";
import { Copy, html, isActive, Missing, Section } from "./ui.js";

const LINES = 400;
const NEAR_END_PX = 40;

const nameOf = (log) => `${words(log.step)} ${log.attempt} · ${log.name}`;

/** Keeps a box at its end while text is added, unless the reader has scrolled up. */
function useFollowed(text) {
  const box = useRef(null);
  const follows = useRef(true);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR_END_PX;
  };
  useEffect(() => {
    if (box.current && follows.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text]);
  return { box, onScroll };
}

/** The log to show first: of the first rank that trained last; of a failed run, of its last attempt. */
function firstOf(run) {
  const newest = run.logs.at(-1);
  const own = run.logs.filter((each) => each.step === newest?.step && each.attempt === newest.attempt);
  const looked = run.state === "failed" ? own : run.logs;
  return looked.findLast((each) => each.name === "rank-0") ?? own.find((each) => each.name === "driver") ?? newest;
}

/** A choice of log, and its end, which is updated as it is written. */
export function Logs({ run }) {
  const [chosen, choose] = useState("");
  const log = run.logs.find((each) => nameOf(each) === chosen) ?? firstOf(run);
  const address = log ? link("data/run/log", { id: run.run_id, ...log, lines: LINES }) : "";
  const loaded = useLive(address, { isFinal: () => !isActive(run.state) });
  const text = loaded.data && !loaded.isStale ? loaded.data.lines.join("\n") : "";
  const { box, onScroll } = useFollowed(text);
  if (!log) return null;
  const aside = html`<select aria-label="Log" value=${nameOf(log)} onChange=${(event) => choose(event.target.value)}>
      ${run.logs.map((each) => html`<option key=${nameOf(each)} value=${nameOf(each)}>${nameOf(each)}</option>`)}
    </select><${Copy} text=${text} what="the log" />`;
  return html`<${Section} title="Log" flush aside=${aside}>
    ${loaded.data
      ? html`<pre class="log" tabindex="0" role="log" aria-live="off" aria-label=${nameOf(log)} ref=${box} onScroll=${onScroll}>${!loaded.data.is_whole && html`<span class="muted">… the last ${loaded.data.lines.length} lines\n</span>`}${text || "The log is empty."}</pre>`
      : html`<${Missing} loaded=${loaded} />`}
  <//>`;
}
