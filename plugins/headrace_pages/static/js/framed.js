// Pages of Dask and TensorBoard, in a frame without this page's rights.

import { useEffect, useState } from "../vendor/hooks.mjs";
import { asked, link, look, Refused, ROOT } from "./live.js";
import { html, Notice } from "./ui.js";

/** A new ticket is requested so long before the old one expires. */
const SPARE_S = 60;

/** The address of the frame, renewed before its ticket expires; `error` has the reason if there is none. */
function useTicket(kind, id) {
  const [frame, setFrame] = useState({ address: "", error: null });
  useEffect(() => {
    let timer = 0;
    async function open() {
      try {
        const { address, lasts_s: lasts } = await look(link("data/open", { kind, id }));
        setFrame({ address: link(address), error: null });
        timer = setTimeout(open, (lasts - SPARE_S) * 1000);
      } catch (wrong) {
        if (!(wrong instanceof Refused)) throw wrong;
        setFrame({ address: "", error: wrong });
      }
    }
    open();
    return () => clearTimeout(timer);
  }, []);
  return frame;
}

/** The page that led here, or one of these pages. */
const cameFrom = (otherwise) => {
  const before = document.referrer;
  return before.startsWith(window.location.origin + ROOT) ? before : otherwise;
};

const framed = (kind, title, otherwise) => () => {
  const id = asked().get("id") ?? "";
  const { address, error } = useTicket(kind, id);
  document.title = `${title} · headrace`;
  return html`<div class="title">
      <p class="crumb"><a href=${cameFrom(otherwise(id))}>Back</a></p>
      <h1>${title}</h1><p class="muted code">${id}</p>
    </div>
    ${error && html`<${Notice} kind="bad" what=${error.what} hint=${error.hint} />`}
    ${address
      ? html`<iframe class="report panel" title=${title} src=${address} sandbox="allow-scripts"></iframe>`
      : !error && html`<p class="muted loading" role="status">Opening…</p>`}`;
};

/** The Dask dashboard of a lease. */
export const Dask = framed("dask", "Dask dashboard", () => link("leases/"));

/** TensorBoard, for a run. */
export const TensorBoard = framed("tensorboard", "TensorBoard", (id) => link("run/", { id }));
