// Where the work runs: nodes with their ranks, and steps over time.

import { bytes, count, duration, known, number, when, words } from "./format.js";
import { html, isActive, Meter, tone } from "./ui.js";

const Ranks = ({ ranks }) => html`<ul class="ranks">${ranks.map((rank) => html`<li key=${rank.rank}>
  <span class="muted">rank ${rank.rank}</span>
  <span class="number">${number(rank.cores)} cores</span>
  <span class="number">${bytes(rank.rss_bytes)}${known(rank.gpu_bytes) ? `, GPU ${bytes(rank.gpu_bytes)}` : ""}</span>
</li>`)}</ul>`;

const Use = ({ name, share }) =>
  known(share) ? html`<div class="use"><dt>${name}</dt><dd><${Meter} value=${share} /></dd></div>` : null;

/** The newest figures of each node, and of its ranks. */
export const Nodes = ({ use }) => html`<ul class="nodes">${use.nodes.map((node) => html`<li key=${node.node}>
  <h3 class="code">${node.node}</h3>
  <dl>
    <${Use} name="CPU" share=${node.cpu} />
    <${Use} name="Memory" share=${node.memory} />
    <${Use} name="GPU" share=${node.gpu} />
    <${Use} name="GPU memory" share=${node.gpu_memory} />
    ${known(node.gpu_power_w) && html`<div class="use"><dt>Power</dt><dd class="number">${count(node.gpu_power_w)} W</dd></div>`}
  </dl>
  <${Ranks} ranks=${use.ranks.filter((rank) => rank.node === node.node)} />
</li>`)}</ul>`;

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];

/** Round moments between two, about five of them. */
function ticks(from, to) {
  const every = STEPS_S.find((step) => (to - from) / step <= 6) ?? (to - from) / 5;
  const found = [];
  for (let at = Math.ceil(from / every) * every; at <= to; at += every) found.push(at);
  return { found, every };
}

function clock(at, every, now) {
  const time = when(at, now);
  return every < 60 ? `${time}:${String(new Date(at * 1000).getSeconds()).padStart(2, "0")}` : time;
}

const KEY = [["waited", "waited"], ["ran tone-active", "running"], ["ran tone-good", "succeeded"], ["ran tone-bad", "failed"]];

/** Attempts at steps over time; moments in the last tenth have no name: it would be cut. */
export function Timeline({ attempts, now }) {
  const from = Math.min(...attempts.map((each) => Math.min(each.created_at, each.started_at ?? Infinity))); // clocks of machines differ
  const to = Math.max(from + 1, ...attempts.map((each) => each.finished_at ?? (isActive(each.state) ? now : each.started_at ?? each.created_at)));
  const share = (at) => `${(100 * (at - from)) / (to - from)}%`;
  const { found, every } = ticks(from, to);
  const lanes = [...new Set(attempts.map((each) => each.step))];
  return html`<div class="timeline" role="img" aria-label="When each step waited and ran; the table of attempts has the same in words">
    ${lanes.map((lane) => html`<div class="lane" key=${lane}><span class="name">${words(lane)}</span><div class="track">
      ${found.map((at) => html`<i key=${at} class="line" style=${{ left: share(at) }}></i>`)}
      ${attempts.filter((each) => each.step === lane).map((each) => {
        const end = each.finished_at ?? (isActive(each.state) ? now : each.started_at ?? each.created_at);
        const begun = each.started_at ?? end;
        const cause = words(each.failure_class);
        const summary = `${words(each.step)} ${each.attempt}, ${words(each.state)}, ${duration(end - begun)}${each.node ? ` on ${each.node}` : ""}${each.message ? `: ${each.message}` : ""}`;
        return html`<span key=${`${each.attempt} ${each.lease_id}`} title=${summary}>
          <span class="waited" style=${{ left: share(each.created_at), width: `${(100 * Math.max(0, begun - each.created_at)) / (to - from)}%` }}></span>
          <span class=${`ran tone-${tone(each.state)}`} style=${{ left: share(begun), width: `${(100 * (end - begun)) / (to - from)}%` }}><span>${[each.attempt > 1 && `${each.attempt}`, each.node, cause || (!each.node && words(each.state))].filter(Boolean).join(" · ")}</span></span>
        </span>`;
      })}
    </div></div>`)}
    <div class="lane axis"><span class="name"></span><div class="track">${found.filter((at) => at - from < 0.9 * (to - from)).map((at) => html`<span key=${at} class="mark number" style=${{ left: share(at) }}>${clock(at, every, now)}</span>`)}</div></div>
    <div class="legend">${KEY.map(([kind, name]) => html`<span class="entry" key=${name}><span class=${`swatch ${kind}`}></span><span class="name">${name}</span></span>`)}</div>
  </div>`;
}
