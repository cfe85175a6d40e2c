// Tables: sorted by any column; of long tables only the rows in sight are in the page.

import { useEffect, useMemo, useRef, useState } from "../vendor/hooks.mjs";
import { known } from "./format.js";
import { usePlace } from "./live.js";
import { html } from "./ui.js";

const ROW_HEIGHT_PX = 36;
const BEYOND = 12; // rows kept ready above and below those in sight

function compare(one, other) {
  if (!known(one) || !known(other)) return known(other) - known(one); // unknown ones last
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

function ordered(rows, column, direction) {
  if (!column?.value) return rows;
  const values = new Map(rows.map((row) => [row, column.value(row)]));
  return [...rows].sort((one, other) => {
    const [first, second] = [values.get(one), values.get(other)];
    return known(first) && known(second) ? direction * compare(first, second) : compare(first, second);
  });
}

/**
 * Rows in the order that the reader chose, which is kept in the page's address as `name`.
 *
 * `first` is the order before that, as `column` or `-column`; "" for the order of `rows`.
 */
export function useSorted(rows, columns, first = "", name = "sort") {
  const [order, setOrder] = usePlace(name, first);
  const id = order.replace(/^-/, "");
  const direction = order.startsWith("-") ? -1 : 1;
  const column = columns.find((each) => each.id === id);
  const sorted = useMemo(() => ordered(rows, column, direction), [rows, id, direction]);
  const onSort = (clicked) => {
    const isSame = clicked.id === id;
    setOrder((isSame ? direction === 1 : clicked.numeric) ? `-${clicked.id}` : clicked.id);
  };
  return { rows: sorted, id, direction, onSort };
}

function Heading({ column, sort }) {
  const isSorted = sort && sort.id === column.id;
  const arrow = isSorted ? (sort.direction === 1 ? "↑" : "↓") : "";
  const direction = isSorted ? (sort.direction === 1 ? "ascending" : "descending") : undefined;
  return html`<th scope="col" role="columnheader" class=${column.numeric ? "numeric" : ""} aria-sort=${direction}
    title=${column.title.length > 14 ? column.title : undefined}>
    ${sort && column.value
      ? html`<button type="button" class="sort" onClick=${() => sort.onSort(column)}>${column.title}<span aria-hidden="true">${arrow}</span></button>`
      : html`<span class=${column.hidden ? "sr-only" : ""}>${column.head ?? column.title}</span>`}
  </th>`;
}

const Row = ({ row, columns, index }) => html`<tr role="row" aria-rowindex=${index}>
  ${columns.map((column) => html`<td key=${column.id} role="cell" data-label=${column.title}
    class=${`cell-${column.id} ${column.numeric ? "numeric" : ""} ${column.wide ? "wide" : ""} ${column.lead ? "lead" : ""}`}>${column.cell(row)}</td>`)}
</tr>`;

const Spacer = ({ height }) => (height > 0 ? html`<tr aria-hidden="true" class="spacer" style=${{ height: `${height}px` }}></tr>` : null);

/** The rows of a scrolled box that are in sight, as `[first, end]`; all of a short table. */
function useWindow(box, total, isWindowed) {
  const [view, setView] = useState({ top: 0, height: 800 });
  useEffect(() => {
    const node = box.current;
    if (!isWindowed || !node) return undefined;
    const look = () => setView({ top: node.scrollTop, height: node.clientHeight });
    const watcher = new ResizeObserver(look);
    node.addEventListener("scroll", look, { passive: true });
    watcher.observe(node);
    return () => {
      node.removeEventListener("scroll", look);
      watcher.disconnect();
    };
  }, [isWindowed]);
  if (!isWindowed) return [0, total];
  const first = Math.max(0, Math.floor(view.top / ROW_HEIGHT_PX) - BEYOND);
  const shown = Math.ceil(view.height / ROW_HEIGHT_PX) + 2 * BEYOND;
  return [Math.min(first, Math.max(0, total - shown)), Math.min(total, first + shown)];
}

/**
 * A table.
 *
 * `columns`: `{id, title, cell(row), head? in place of the title, value?(row) to sort by, numeric?, width?, wide?, lead?, hidden?}`;
 * `hidden` hides the title from sight; on a card `lead` is its heading and `wide` has a line of its own.
 * `fixed`: columns are as wide as they say. `windowed`: rows of one height in a box that scrolls. `cards`: on a phone each row is a card.
 */
export function Table({ caption, columns, rows, rowKey, sort, windowed = false, cards = false, fixed = false, empty = "None." }) {
  const box = useRef(null);
  const [first, end] = useWindow(box, rows.length, windowed);
  const style = windowed ? { width: "max-content", minWidth: "100%" } : {};
  if (!rows.length) return html`<p class="muted empty">${empty}</p>`;
  return html`<div class=${`table-box ${windowed ? "windowed" : ""} ${cards ? "cards" : ""} ${fixed ? "fixed" : ""}`} ref=${box}
    tabindex="0" role="region" aria-label=${caption}>
    <table role="table" style=${style} aria-rowcount=${rows.length + 1}>
      <caption class="sr-only">${caption}</caption>
      <colgroup>${columns.map((column) => html`<col key=${column.id} style=${{ width: column.width ?? "auto" }} />`)}</colgroup>
      <thead role="rowgroup"><tr role="row" aria-rowindex="1">
        ${columns.map((column) => html`<${Heading} key=${column.id} column=${column} sort=${sort} />`)}
      </tr></thead>
      <tbody role="rowgroup">
        <${Spacer} key="above" height=${first * ROW_HEIGHT_PX} />
        ${rows.slice(first, end).map((row, index) => html`<${Row} key=${rowKey(row)} row=${row} columns=${columns} index=${first + index + 2} />`)}
        <${Spacer} key="below" height=${(rows.length - end) * ROW_HEIGHT_PX} />
      </tbody>
    </table>
  </div>`;
}
