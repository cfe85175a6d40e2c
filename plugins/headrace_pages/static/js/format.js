// Numbers, times and sizes as text. An unknown value is a dash.

export const UNKNOWN = "–";

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const two = (number) => String(number).padStart(2, "0");

/** Whether a value is known; null and undefined are not. */
export const known = (value) => value !== null && value !== undefined;

const text = (value, words) => (known(value) && Number.isFinite(value) ? words(value) : UNKNOWN);

/** Seconds in their two largest units. */
export function duration(seconds) {
  return text(seconds, (value) => {
    if (value < 10) return `${Math.max(0, Math.round(value * 10) / 10)} s`;
    const whole = Math.round(value);
    if (whole < 60) return `${whole} s`;
    const [minutes, hours] = [Math.floor(whole / 60), Math.floor(whole / 3600)];
    if (hours === 0) return `${minutes} min ${two(whole % 60)} s`;
    if (hours < 48) return `${hours} h ${two(minutes % 60)} min`;
    return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
  });
}

/** A measured number with four significant digits. */
export function number(value) {
  return text(value, (it) => {
    const size = Math.abs(it);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return it.toExponential(2);
    return it.toLocaleString("en", { maximumSignificantDigits: size >= 1e4 ? 7 : 4 });
  });
}

/** A whole number with separators. */
export const count = (value) => text(value, (it) => Math.round(it).toLocaleString("en"));

/** A share of 1 in percent. */
export const percent = (value) =>
  text(value, (it) => `${(it * 100).toFixed(it > 0 && it < 0.0995 ? 1 : 0)} %`);

/** The cost of a run; `+?` and `?` stand for machines without a known price. */
export const costOf = ({ cost }) => (!cost ? dollars(null) : !cost.usd && cost.unpriced ? "?" : `${dollars(cost.usd)}${cost.unpriced ? "+?" : ""}`);

/** The sentence of a removed run. */
export const removedWords = ({ at, by }) => `removed on ${new Date(at * 1000).toISOString().slice(0, 10)} by ${by}`;

/** Time left of a run, else of its step: `value`, what it is `of`, and the step's `part` of it, which is at most all. */
export function leftOf({ eta_s, step_eta_s, step }) {
  const part = known(step_eta_s) ? `${duration(step_eta_s)} of ${words(step)}` : "";
  if (!known(eta_s)) return { value: duration(step_eta_s), of: part && `of ${words(step)}`, part: part && "the rest is unknown" };
  return { value: duration(Math.max(eta_s, step_eta_s ?? 0)), of: "in all", part: step_eta_s >= eta_s ? "" : part };
}

/** US dollars. */
export const dollars = (value) =>
  text(value, (it) => {
    if (it > 0 && it < 0.01) return "< $0.01";
    const digits = it >= 1000 ? 0 : 2;
    return `$${it.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
  });

/** Bytes in the largest unit that gives less than 1024. */
export function bytes(value) {
  return text(value, (it) => {
    const unit = it < 1 ? 0 : Math.min(SIZES.length - 1, Math.floor(Math.log2(it) / 10));
    const scaled = it / 1024 ** unit;
    return `${scaled.toFixed(unit === 0 || scaled >= 100 ? 0 : 1)} ${SIZES[unit]}`;
  });
}

/** The time zone of Airflow's own pages; undefined for the browser's. */
function chosenZone() {
  try {
    const timeZone = JSON.parse(window.localStorage.getItem("timezone")) ?? undefined;
    return new Intl.DateTimeFormat("en-GB", { timeZone }).resolvedOptions().timeZone;
  } catch {
    return undefined; // no such zone, or a frame without storage
  }
}

const timeZone = chosenZone();

/** Seconds since the epoch by some parts of date and time, in that zone. */
function shownBy(parts) {
  const format = new Intl.DateTimeFormat("en-GB", { timeZone, ...parts });
  return (seconds) => format.format(new Date(seconds * 1000));
}

const date = { day: "numeric", month: "short" };
const [clock, day, dated] = [{ hour: "2-digit", minute: "2-digit" }, date, { ...date, year: "numeric" }].map(shownBy);

/** Seconds since the epoch as time of the day; with the day unless it is the day of `now`. */
export function when(seconds, now) {
  return text(seconds, (value) => (known(now) && dated(value) === dated(now) ? clock(value) : `${day(value)} ${clock(value)}`));
}

const full = shownBy({ dateStyle: "medium", timeStyle: "long" });

/** Seconds since the epoch as date and time to the second, with the time zone. */
export const moment = (seconds) => text(seconds, full);

/** A name of the ledger as words: `timed_out` → `timed out`. */
export const words = (name) => (name ?? "").replaceAll("_", " ");
