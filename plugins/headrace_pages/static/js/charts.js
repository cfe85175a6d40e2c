// Curves and points, drawn by uPlot (a global of its script).

import { useEffect, useMemo, useRef, useState } from "../vendor/hooks.mjs";
import { known, number } from "./format.js";
import { html } from "./ui.js";

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5];
const HEIGHT_PX = 200;
const COLOURS = 8;
const FEW = 40; // up to this number of points, points of a line are also drawn as dots
const MANY = 1500; // from this number on, points are small and transparent
const LETTERS = 12; // of a name below an axis
const MARGIN = 0.03; // of the width of x, left and right of points

const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (index) => styleOf(`--series-${index % COLOURS}`);

/** The colour of a line by its number, for CSS. */
export const swatch = (index) => `var(--series-${index % COLOURS})`;

/** The colour number of a line: that of its run, the same in all charts; else its position. */
const hueOf = (line, index) => line.hue ?? index;
const dash = (index) => (index < COLOURS ? [] : [6, 3]);
const short = (value) => (known(value) ? number(value) : "");

/** A name shortened to the room of an axis; the legend has all of it. */
const clipped = (name) => (name.length > LETTERS ? `${name.slice(0, LETTERS)}…` : name);

/** Options of an axis in the page's colours, with `extra`. */
function axis(extra) {
  return {
    stroke: () => styleOf("--muted"),
    grid: { stroke: () => styleOf("--grid"), width: 1 },
    ticks: { show: false },
    font: '11px "Inter Variable", system-ui, sans-serif',
    ...extra,
  };
}

function series(line, nth) {
  const index = hueOf(line, nth);
  const isPoints = line.only === "points";
  const isMany = isPoints && line.x.length >= MANY;
  const ink = () => colour(index) + (isMany ? "8c" : "");
  return {
    label: line.label,
    stroke: () => colour(index),
    width: 1.75,
    dash: dash(index),
    paths: isPoints ? () => null : line.only === "steps" ? uPlot.paths.stepped({ align: 1 }) : undefined,
    points: {
      show: isPoints || (line.x.length <= FEW && line.only !== "steps"),
      size: isMany ? 3 : 5,
      width: isPoints ? 0 : 1,
      stroke: ink,
      fill: ink,
    },
  };
}

/** Range of x, with a margin if points would be cut. */
function rangeOf(low, high, { isLogX, xNames }) {
  if (xNames) return [-0.5, xNames.length - 0.5];
  const by = isLogX ? (high / low) ** MARGIN : (high - low || 1) * MARGIN;
  return isLogX ? [low / by, high * by] : [low - by, high + by];
}

function options({ lines, isLog, isLogX, isWholeX, xNames, width, sync, onIndex, onZoom }) {
  const names = (_u, splits) => splits.map((split) => clipped(xNames[split] ?? ""));
  return {
    width,
    height: HEIGHT_PX,
    padding: [12, 12, 0, 4],
    legend: { show: false },
    cursor: { sync: sync ? { key: sync } : undefined, points: { size: 7 }, drag: { x: true, y: false } },
    scales: {
      x: {
        time: false,
        distr: isLogX ? 3 : 1,
        range: lines[0].only === "points" ? (_u, low, high) => rangeOf(low, high, { isLogX, xNames }) : undefined,
      },
      y: { distr: isLog ? 3 : 1 },
    },
    axes: [
      axis({ size: 28, space: 60, incrs: xNames || isWholeX ? WHOLE : undefined, values: xNames ? names : (_u, it) => it.map(short) }),
      axis({ size: 56, space: 34, values: (_u, it) => it.map(short) }),
    ],
    series: [{}, ...lines.map(series)],
    hooks: {
      setCursor: [(plot) => onIndex(plot.cursor.idx ?? null)],
      setSelect: [(plot) => onZoom(plot.select.width > 0)],
    },
  };
}

const joined = (lines) =>
  lines.length === 1 ? [lines[0].x, lines[0].y] : uPlot.join(lines.map((line) => [line.x, line.y]));

function last(line) {
  for (let at = line.y.length - 1; at >= 0; at -= 1) if (known(line.y[at])) return at;
  return -1;
}

/** A text of a chart's content, for screen readers. */
function description(lines, xTitle) {
  const sentences = lines.map((line) => {
    const at = last(line);
    if (at < 0) return `${line.label}: nothing yet`;
    const values = line.y.filter(known);
    const [low, high] = values.reduce(([a, b], it) => [Math.min(a, it), Math.max(b, it)], [Infinity, -Infinity]);
    return `${line.label}: ${number(line.y[at])} at ${xTitle} ${number(line.x[at])}, from ${number(low)} to ${number(high)}`;
  });
  return sentences.join("; ");
}

function Legend({ lines, data, index, xTitle, xNames }) {
  const x = index === null ? null : data[0][index];
  const at = x === null || x === undefined ? "" : `${xTitle} ${xNames ? xNames[Math.round(x)] : number(x)}`;
  const shown = (line, nth) => (index === null ? line.y[last(line)] : data[nth + 1][index]);
  const isNamed = (line) => index !== null || line.only !== "points"; // single points have no newest value
  return html`<div class="legend">
    ${lines.map((line, nth) => html`<span class="entry" key=${line.label}>
      <span class=${`swatch ${line.only === "points" ? "dots" : hueOf(line, nth) < COLOURS ? "" : "dashed"}`} style=${{ background: swatch(hueOf(line, nth)) }}></span>
      <span class="name" title=${line.label}>${line.label}</span>
      <span class="number">${isNamed(line) ? number(shown(line, nth)) : ""}</span>
    </span>`)}
    <span class="at number">${at}${x !== null && lines[0].note ? lines[0].note(index) : ""}</span>
  </div>`;
}

/**
 * A chart with a title and a legend that follows the pointer.
 *
 * `lines`: `{label, x: [...], y: [value or null, ...], only?: "points" | "steps", note?(index)}`, x upwards.
 * `xNames`: x are indices of these names. `sync`: charts of the same word share their pointer.
 */
export function Chart({ title, lines, xTitle = "step", xNames = null, isLogX = false, isWholeX = false, sync = "" }) {
  const place = useRef(null);
  const plot = useRef(null);
  const isZoomed = useRef(false);
  const [isLog, setLog] = useState(false);
  const [index, setIndex] = useState(null);
  const data = useMemo(() => joined(lines), [lines]);
  const canLog = lines.every((line) => line.y.every((value) => !known(value) || value > 0));
  const shape = JSON.stringify([lines.map((line) => [line.label, line.only, line.hue, line.x.length <= FEW]), xNames, isLog && canLog, isLogX]);

  const onZoom = (isOn) => { isZoomed.current = isOn; };

  useEffect(() => {
    const node = place.current;
    isZoomed.current = false;
    const given = { lines, isLog: isLog && canLog, isLogX, isWholeX, xNames, width: node.clientWidth, sync, onIndex: setIndex, onZoom };
    plot.current = new uPlot(options(given), data, node);
    const watcher = new ResizeObserver(() => plot.current.setSize({ width: node.clientWidth, height: HEIGHT_PX }));
    const redraw = () => plot.current.redraw();
    watcher.observe(node);
    window.addEventListener("themechange", redraw);
    return () => {
      watcher.disconnect();
      window.removeEventListener("themechange", redraw);
      plot.current.destroy();
    };
  }, [shape]);
  useEffect(() => {
    plot.current.setData(data, !isZoomed.current);
    if (isZoomed.current) plot.current.redraw();
  }, [data]);

  return html`<figure class="chart">
    <figcaption><h3>${title}</h3>
      ${canLog && html`<button type="button" class="plain" aria-pressed=${isLog} aria-label=${`log scale of ${title}`} onClick=${() => setLog(!isLog)}>log</button>`}
    </figcaption>
    <div class="plot" ref=${place} onDblClick=${() => onZoom(false)} role="img" aria-label=${`${title}. ${description(lines, xTitle)}`}></div>
    <${Legend} lines=${lines} data=${data} index=${index} xTitle=${xTitle} xNames=${xNames} />
  </figure>`;
}

const KINDS = { loss: 0, metric: 1, lr: 2 };

const TITLES = { loss: "loss", lr: "learning rate" };

/** `val_loss`, `val/loss` and `train_loss` belong to the chart of `loss`. */
const family = (name) => name.replace(/^(train|val|valid|validation|test)[/_.]/, "").replace(/_(epoch|step)$/, "");

/** The charts of one run, or of several runs by their `labels`: `{title, lines}`, the loss first. */
export function chartsOf(runs, labels = null) {
  const found = new Map();
  for (const [nth, run] of runs.entries()) {
    for (const each of run.series) {
      const own = each.kind === "lr" ? `${TITLES.lr} of ${each.name}` : each.name;
      const title = labels ? own : (TITLES[each.kind] ?? family(each.name));
      const chart = found.get(title) ?? { title, kind: KINDS[each.kind] ?? 1, lines: [] };
      chart.kind = Math.min(chart.kind, KINDS[each.kind] ?? 1);
      const label = labels ? labels[run.run_id] : each.name;
      chart.lines.push({ label, x: each.x, y: each.y, hue: labels ? nth : undefined });
      found.set(title, chart);
    }
  }
  return [...found.values()].sort((one, other) => one.kind - other.kind);
}

/** All curves of runs side by side. */
export function Curves({ runs, labels }) {
  const charts = useMemo(() => chartsOf(runs, labels), [runs, labels]);
  if (!charts.length) return html`<p class="muted empty">No curves: they begin with the first steps of training.</p>`;
  return html`<div class="charts">${charts.map((chart) => html`<${Chart} key=${chart.title} ...${chart} sync="step" />`)}</div>`;
}
