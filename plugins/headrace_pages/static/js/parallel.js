// Parallel coordinates: a line for each trial over all varied keys, to its objective; axes can be brushed.

import { useEffect, useMemo, useRef, useState } from "../vendor/hooks.mjs";
import { axisOf, REPEATS } from "./axes.js";
import { count, known, number } from "./format.js";
import { shortNames } from "./trials.js";
import { html, Section } from "./ui.js";

const HEIGHT_PX = 260;
const [TOP_PX, FOOT_PX] = [10, 34]; // below the axes there is room for trials without a value
const EDGE_PX = 48; // left and right of the outer axes
const [LETTER_PX, LEAST_PX] = [7.5, 92]; // room of an axis for its name
const MOST_AXES = 12;
const HUES = 16;
const TOGETHER = 40; // lines per stroke
const [NARROWEST, STEP] = [0.02, 0.05]; // shares of an axis: the smallest brush, and its steps by keys
const FAILED = new Set(["failed", "lost", "timed_out", "preempted"]);

const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shown = (value) => (typeof value === "number" ? number(value) : String(value));
const clamp = (share) => Math.min(1, Math.max(0, share));

/** Axes of the keys that vary, and of the objective, with the height in pixels of each ended trial, by axis. */
function layout({ rows, keys }, objective, logKeys) {
  const ended = rows.filter((row) => known(row.objective) || FAILED.has(row.state));
  const names = shortNames(keys);
  const varied = keys.filter((key) => !REPEATS.has(key)).map((key) => axisOf(ended, key, names[key], (row) => row.values[key], logKeys.includes(key))).filter(Boolean);
  const sought = axisOf(ended, "objective", objective?.metric ?? "objective", (row) => row.objective);
  if (!sought || !varied.length) return null;
  const better = objective?.mode === "max" ? -1 : 1; // the best are drawn last, over the others
  const order = (row) => (known(row.objective) ? better * row.objective : Infinity);
  const drawn = [...ended].sort((one, other) => (order(one) === order(other) ? 0 : order(other) - order(one)));
  const axes = [...varied.slice(0, MOST_AXES), sought];
  const height = (axis) => (row) => {
    if (axis === sought && !known(row.objective)) return HEIGHT_PX - 8;
    return TOP_PX + (1 - axis.place(row)) * (HEIGHT_PX - TOP_PX - FOOT_PX);
  };
  return { axes, drawn, heights: axes.map((axis) => Float32Array.from(drawn, height(axis))), left: varied.length - axes.length + 1 };
}

/** Whether a row is within all brushes. */
const isWithin = (axes, brushes) => (row) =>
  axes.every((axis) => {
    const brush = brushes[axis.id];
    const place = brush ? axis.place(row) : 0;
    return !brush || (place >= brush[0] && place <= brush[1]);
  });

const across = (at, axes, width) => EDGE_PX + (width - 2 * EDGE_PX) * (at / (axes.length - 1));

/** Stroke the lines of some trials, by their places in `drawn`. */
function stroke(context, { axes, drawn, heights }, chosen, width, colour) {
  let hue = "";
  const xs = axes.map((_axis, at) => across(at, axes, width));
  const finish = () => { context.strokeStyle = hue; context.stroke(); context.beginPath(); };
  context.beginPath();
  chosen.forEach((trial, nth) => {
    const own = colour(trial, drawn[trial]);
    if (own !== hue || nth % TOGETHER === 0) { finish(); hue = own; }
    let isOpen = false; // a line has gaps if a trial lacks a key
    for (let at = 0; at < xs.length; at += 1) {
      const y = heights[at][trial];
      if (Number.isNaN(y)) isOpen = false;
      else if (isOpen) context.lineTo(xs[at], y);
      else { context.moveTo(xs[at], y); isOpen = true; }
    }
  });
  finish();
}

function draw(canvas, plan, within, width) {
  const scale = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: width * scale, height: HEIGHT_PX * scale });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const all = [...plan.drawn.keys()];
  const chosen = within ? all.filter((trial) => within(plan.drawn[trial])) : all;
  if (within) {
    context.globalAlpha = 0.35;
    stroke(context, plan, sampled(all), width, () => styleOf("--line-strong"));
  }
  context.globalAlpha = Math.max(0.12, Math.min(0.9, 12 / Math.sqrt(chosen.length)));
  const failed = plan.drawn.findIndex((row) => known(row.objective));
  const [best, worst, bad] = ["--series-0", "--series-1", "--bad"].map(styleOf);
  const ranked = Math.max(1, plan.drawn.length - failed);
  const hues = Array.from({ length: HUES }, (_each, at) => `color-mix(in oklab, ${best} ${Math.round((100 * at) / (HUES - 1))}%, ${worst})`);
  stroke(context, plan, chosen, width, (trial, row) => (known(row.objective) ? hues[Math.round((HUES - 1) * (ranked > 1 ? (trial - failed) / (ranked - 1) : 1))] : bad));
}

/** Lines, few enough to label all of them. */
const sampled = (all) => all.filter((_each, at) => at % Math.ceil(all.length / 1500) === 0);

/** A brush after a key press; null for none, undefined if the key has no effect. */
function pressed(key, [low, high], isBrushed) {
  const size = high - low;
  if (key === "Escape") return null;
  if (key !== "ArrowUp" && key !== "ArrowDown") return undefined;
  if (!isBrushed) return key === "ArrowUp" ? [0.75, 1] : [0, 0.25];
  const from = Math.min(1 - size, Math.max(0, low + (key === "ArrowUp" ? STEP : -STEP)));
  return [from, from + size];
}

function Axis({ axis, left, brush, onBrush }) {
  const held = useRef(null);
  const [low, high] = brush ?? [0, 1];
  const place = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    return clamp(1 - (event.clientY - box.top) / box.height);
  };
  const onPointerDown = (event) => {
    event.currentTarget.setPointerCapture(event.pointerId);
    held.current = { at: place(event), brush: brush && place(event) >= low && place(event) <= high ? brush : null };
  };
  const onPointerMove = (event) => {
    if (!held.current) return;
    const [from, at] = [held.current.at, place(event)];
    if (!held.current.brush) return onBrush([Math.min(from, at), Math.max(from, at)]);
    const [first, end] = held.current.brush;
    const by = Math.min(1 - end, Math.max(-first, at - from));
    return onBrush([first + by, end + by]);
  };
  const onPointerUp = () => {
    if (held.current && (!brush || high - low < NARROWEST)) onBrush(null);
    held.current = null;
  };
  const onKeyDown = (event) => {
    const next = pressed(event.key, [low, high], Boolean(brush));
    if (next === undefined) return;
    event.preventDefault();
    onBrush(next);
  };
  const within = brush ? `${shown(axis.at(low))} to ${shown(axis.at(high))}` : "all";
  return html`<div class="axis" style=${{ left }}>
    <span class="name" title=${axis.title}>${axis.title}</span>
    <div class="brush-place" role="slider" tabindex="0" aria-orientation="vertical" aria-label=${`Part of ${axis.title}`} aria-valuemin="0" aria-valuemax="100"
      aria-valuenow=${Math.round(50 * (low + high))} aria-valuetext=${within} title=${brush ? within : undefined}
      onPointerDown=${onPointerDown} onPointerMove=${onPointerMove} onPointerUp=${onPointerUp} onPointerCancel=${onPointerUp} onKeyDown=${onKeyDown}>
      ${brush && html`<span class="brush" style=${{ top: `${100 * (1 - high)}%`, height: `${100 * (high - low)}%` }}></span>`}
      ${axis.ticks.map(([at, value]) => html`<span class="tick-mark number" key=${value} style=${{ top: `${100 * (1 - at)}%` }}>${shown(value)}</span>`)}
    </div>
  </div>`;
}

/**
 * Lines of the ended trials over the varied keys.
 *
 * `onChoose(within)` gets a function of the brushes: whether a row is within all of them; null without any.
 */
export function Parallel({ data, objective, logKeys, onChoose }) {
  const canvas = useRef(null);
  const [brushes, setBrushes] = useState({});
  const [size, setSize] = useState({ width: 0 }); // a new size draws again
  const plan = useMemo(() => layout(data, objective, logKeys), [data, objective?.metric, objective?.mode]);
  const within = useMemo(() => (plan && Object.keys(brushes).length ? isWithin(plan.axes, brushes) : null), [plan, brushes]);
  const isThere = plan !== null;

  useEffect(() => {
    if (!isThere) return undefined;
    const look = () => setSize({ width: canvas.current.clientWidth });
    const watcher = new ResizeObserver(look);
    watcher.observe(canvas.current);
    window.addEventListener("themechange", look);
    return () => { watcher.disconnect(); window.removeEventListener("themechange", look); };
  }, [isThere]);
  useEffect(() => {
    if (plan && size.width) draw(canvas.current, plan, within, size.width);
  }, [plan, within, size]);
  useEffect(() => onChoose(within), [within]);

  if (!plan) return null;
  const brush = (id) => (part) => setBrushes(({ [id]: _before, ...others }) => (part ? { ...others, [id]: part } : others));
  const failed = plan.drawn.filter((row) => !known(row.objective)).length;
  const aside = html`${within && html`<button type="button" class="plain" onClick=${() => setBrushes({})}>Show all</button>`}`;
  const room = Math.max(LEAST_PX, ...plan.axes.map((axis) => axis.title.length * LETTER_PX + 16));
  const left = (at) => `calc(${across(at, plan.axes, 0)}px + ${(100 * at) / (plan.axes.length - 1)}%)`;
  return html`<${Section} title="Trials by varied keys" aside=${aside}>
    <div class="parallel-box" tabindex="0" role="region" aria-label="Trials by varied keys"><div class="parallel" style=${{ minWidth: `${plan.axes.length * room}px` }}>
      <canvas ref=${canvas} role="img" aria-label="A line a trial; the table of trials has the same in numbers"></canvas>
      ${plan.axes.map((axis, at) => html`<${Axis} key=${axis.id} axis=${axis} left=${left(at)} brush=${brushes[axis.id]} onBrush=${brush(axis.id)} />`)}
    </div></div>
    <p class="muted small">A line a trial, ${count(plan.drawn.length)} that have ended: <span class="strong" style=${{ color: "var(--series-0)" }}>best</span> to <span class="strong" style=${{ color: "var(--series-1)" }}>worst</span>${failed > 0 && html`, <span class="tone-bad strong failed-line">failed</span> below (${count(failed)})`}. Drag along an axis, or focus it and press ↑ or ↓, to choose trials for the table; Esc frees it.${plan.left > 0 && ` ${plan.left} more keys have no axis.`}</p>
  <//>`;
}
