// Axes of a suite's trials: positions of the values of a key.

import { known } from "./format.js";

const WIDE_SPAN = 50; // an axis is logarithmic when the largest is this many times the smallest,
const LOW_MIDDLE = 0.25; // and the median below this share of the largest
const MOST_TICKS = 6;

/** Keys that only repeat a point: no axes. */
export const REPEATS = new Set(["seed", "data.fold"]);

/** Whether ascending values span orders of magnitude. */
export function isLogarithmic(values) {
  const [low, middle, high] = [values[0], values[Math.floor(values.length / 2)], values[values.length - 1]];
  return low > 0 && high / low >= WIDE_SPAN && middle < LOW_MIDDLE * high;
}

/** Offset within a category, -0.25 to 0.25, so that trials of one value do not hide each other. */
export const spread = (trial) => ((Math.abs(Math.sin(trial) * 1e4) % 1) - 0.5) / 2;

/** Round numbers between two bounds: three to eight. */
export function roundNumbers(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 2));
  const between = (step) => Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1;
  const step = [5, 2, 1, 0.5].map((each) => each * power).find((each) => between(each) >= 3) ?? power / 2;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

/** Powers of ten between two bounds; if fewer than three, also 2 and 5 times these, else the bounds. */
export function powers(low, high) {
  const within = (parts) => {
    const found = [];
    for (let at = Math.floor(Math.log10(low)); at <= Math.log10(high) + 1e-9; at += 1) found.push(...parts.map((part) => part * 10 ** at));
    return found.filter((each) => each >= low * (1 - 1e-9) && each <= high * (1 + 1e-9));
  };
  const whole = within([1]);
  const found = whole.length > 2 ? whole : within([1, 2, 5]);
  const every = Math.ceil(found.length / MOST_TICKS);
  return found.length > 1 ? found.filter((_each, at) => at % every === 0) : [low, high];
}

/**
 * An axis of `rows` by `value(row)`; null if all have the same value.
 *
 * A key that is `spreadByPowers` was sampled on a logarithmic scale. Has `names` (of categories, else null), `isLog`, `ticks` as `[place, value]`, and
 * `place(row)`: 0 to 1 from the bottom, NaN if the row has no value.
 */
export function axisOf(rows, id, title, value, spreadByPowers = false) {
  const values = [...new Set(rows.map(value))].filter(known);
  if (values.length < 2) return null;
  if (!values.every((each) => typeof each === "number")) return ofNames(id, title, value, values.map(String).sort());
  values.sort((one, other) => one - other);
  const isLog = (spreadByPowers && values[0] > 0) || isLogarithmic(values);
  const scaled = isLog ? Math.log : (number) => number;
  const [low, high] = [scaled(values[0]), scaled(values[values.length - 1])];
  const share = (number) => (scaled(number) - low) / (high - low);
  const ticks = values.length <= MOST_TICKS ? values : (isLog ? powers : roundNumbers)(values[0], values[values.length - 1]);
  const isWhole = values.every(Number.isInteger);
  return {
    id, title, value, isLog, isWhole, names: null,
    place: (row) => (known(value(row)) ? share(value(row)) : NaN),
    at: (where) => (isLog ? Math.exp(low + where * (high - low)) : low + where * (high - low)),
    ticks: (isWhole ? ticks.filter(Number.isInteger) : ticks).map((each) => [share(each), each]),
  };
}

function ofNames(id, title, value, names) {
  const index = new Map(names.map((name, at) => [name, at]));
  const share = (at) => (at + 0.5) / names.length;
  const every = Math.ceil(names.length / (2 * MOST_TICKS));
  return {
    id, title, value, isLog: false, isWhole: false, names,
    place: (row) => (known(value(row)) ? share(index.get(String(value(row))) + spread(row.number)) : NaN),
    at: (where) => names[Math.min(names.length - 1, Math.max(0, Math.floor(where * names.length)))],
    ticks: names.map((name, at) => [share(at), name]).filter((_each, at) => at % every === 0),
  };
}
