// Requests of the pages to the server, and the state in their own address.

import { useCallback, useEffect, useRef, useState } from "../vendor/hooks.mjs";

const EVERY_MS = 5000;
const PATIENCE_MS = 60000;

/** An error answer of the server. */
export class Refused extends Error {
  constructor(status, what, hint) {
    super(what);
    Object.assign(this, { status, what, hint });
  }
}

async function refusal(answer) {
  const body = await answer.json().catch(() => ({}));
  const detail = body.detail ?? {};
  const what = detail.what ?? (typeof detail === "string" ? detail : `The server answered ${answer.status}.`);
  if (answer.status === 401) return new Refused(401, "Your session in Airflow has ended.", "Reload the page and log in.");
  if (answer.status === 403) return new Refused(403, "Your role in Airflow does not allow this.", detail.hint ?? "");
  return new Refused(answer.status, what, detail.hint ?? "");
}

async function ask(address, options) {
  try {
    return await fetch(address, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Refused(0, "The API server of Airflow does not answer.", "The page keeps trying.");
  }
}

/** Return the JSON at an address. Throws `Refused`. */
export async function look(address) {
  const answer = await ask(address);
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

/** Request an action, at a path below the root. Throws `Refused`. */
export async function act(address, body) {
  const answer = await ask(link(address), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw await refusal(answer);
  return answer.json();
}

/**
 * Data of an address, requested again every five seconds while the page is in sight.
 *
 * `address` may be "" for nothing yet. `follow(data)` is the address of the changes since `data`, and
 * `merge(old, fresh)` combines both. Data that `isFinal` is seldom requested again. Returns `data`
 * (null before the first answer), `error` (a `Refused` while the newest request failed) and
 * `refresh`.
 */
export function useLive(address, { follow, merge = (_old, fresh) => fresh, isFinal = () => false } = {}) {
  const [loaded, setLoaded] = useState({ data: null, error: null, address });
  const latest = useRef({});
  const refresh = useCallback(() => latest.current.look?.(), []);

  useEffect(() => {
    if (!address) return undefined;
    let [timer, etag, data, isOver, before] = [0, "", null, false, ""];

    async function look() {
      clearTimeout(timer);
      if (document.visibilityState !== "visible") return;
      let error = null;
      try {
        const next = follow && data ? follow(data) : address;
        const answer = await ask(next, { headers: etag && next === before ? { "If-None-Match": etag } : {} });
        before = next;
        if (answer.status !== 304) {
          if (!answer.ok) throw await refusal(answer);
          etag = answer.headers.get("ETag") ?? "";
          data = merge(data, await answer.json());
        }
      } catch (wrong) {
        if (!(wrong instanceof Refused)) throw wrong;
        error = wrong;
      }
      if (isOver) return;
      setLoaded((old) => (old.data === data && old.error === error && old.address === address ? old : { data, error, address }));
      clearTimeout(timer);
      timer = setTimeout(look, data && isFinal(data) ? PATIENCE_MS : EVERY_MS);
    }

    latest.current.look = look;
    look();
    document.addEventListener("visibilitychange", look);
    return () => {
      isOver = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
    };
  }, [address]);

  return { ...loaded, isStale: loaded.address !== address, refresh };
}

/** The address of the pages, with a slash at the end, for any address of Airflow. */
export const ROOT = new URL("../../", import.meta.url).pathname;

/** Parameters of the page's own address. */
export const asked = () => new URLSearchParams(window.location.search);

/** An address below the pages' root with parameters; empty ones are left out. */
export function link(path, parameters = {}) {
  const given = Object.entries(parameters).flatMap(([name, value]) =>
    [value].flat().filter((each) => each !== "" && each !== null && each !== undefined).map((each) => [name, each]),
  );
  return `${ROOT}${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

/** A state in the page's address, which survives a reload and can be shared. */
export function usePlace(name, otherwise) {
  const [value, set] = useState(asked().get(name) ?? otherwise);
  const keep = useCallback((fresh) => {
    const parameters = asked();
    if (fresh === otherwise) parameters.delete(name);
    else parameters.set(name, fresh);
    window.history.replaceState(null, "", `?${parameters}`);
    set(fresh);
  }, []);
  return [value, keep];
}

/** `value`, once it has stayed the same for a moment. */
export function useDebounced(value, afterMs = 300) {
  const [steady, setSteady] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSteady(value), afterMs);
    return () => clearTimeout(timer);
  }, [value]);
  return steady;
}
