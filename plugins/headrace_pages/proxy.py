"""Dask's dashboards and TensorBoard through Airflow, for holders of a ticket.

Their pages run scripts, and a lease runs its user's code: so headers give these pages no rights in
the browser (`sandbox`). They then get no cookies and cannot read Airflow's answers; the ticket in
their address admits them. Only the files of the lease or run say where the pages are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import aiohttp
from fastapi import APIRouter, HTTPException, Query, Request, Response, WebSocket
from fastapi.responses import StreamingResponse
from starlette.websockets import WebSocketState
from yarl import URL

from headrace.clusters.pages import pages_of
from headrace.errors import HeadraceError
from headrace.files.layout import LeaseFolder
from headrace.ledger.ledger import open_ledger
from headrace.record import Record
from headrace.runs.names import named
from headrace_pages.access import User, VisibleSites, check_site, reads
from headrace_pages.answers import PRIVATE
from headrace_pages.tensorboard import serve
from headrace_pages.tickets import LASTS_S, Ticket, sealed, unsealed

logger = logging.getLogger(__name__)

router = APIRouter()

_ASKED = (
    "accept", "accept-encoding", "content-type", "if-none-match", "if-modified-since", "range",
)  # fmt: skip
_PASSED = (
    "content-type", "content-encoding", "content-length", "content-range", "accept-ranges",
    "etag", "last-modified", "cache-control",
)  # fmt: skip
"""Headers that pass, in each direction: no cookies, logins or policies of theirs."""

_NO_RIGHTS = {
    "Content-Security-Policy": "sandbox allow-scripts; form-action 'none'; base-uri 'none'; "
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'self'",
    "Access-Control-Allow-Origin": "*",  # the sandboxed page has no origin; the ticket lets it in
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PATIENCE = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=60)
_MOST_BYTES = 64 * 2**20
_REFUSED, _GOING_AWAY = 1008, 1001
_SILENT = (aiohttp.ClientError, asyncio.TimeoutError, OSError)


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """Location of pages."""

    url: str
    """Address of their folder, with a slash at its end."""
    connector: Callable[[], aiohttp.BaseConnector]
    """Makes the connector; called in the event loop."""
    first: str
    """The first page."""
    quick: str
    """A page that answers quickly."""
    methods: tuple[str, ...]
    """Methods that only read."""
    hint: str
    """Next step if the server does not answer."""


class Opened(Record):
    """Pages that the user may open now."""

    address: str
    """Relative to the address of headrace's pages."""
    lasts_s: int
    """Seconds for which it is valid."""


@router.get("/data/open", dependencies=[reads])
async def open_pages(
    kind: Literal["dask", "tensorboard"],
    given: Annotated[str, Query(alias="id", max_length=500)],
    user: User,
    visible: VisibleSites,
    response: Response,
) -> Opened:
    """Return a ticket for a lease's dashboard, or for TensorBoard of a run, which it starts."""
    check_site(await asyncio.to_thread(_site_of, kind, given), visible)
    ticket = Ticket(kind=kind, id=given, user=user.get_name())
    place = await asyncio.to_thread(_place, ticket)
    async with _session(place) as session:
        await _ask(session, place, place.quick)
    logger.info("%s opens %s of %s", ticket.user, kind, given)
    response.headers.update({**PRIVATE, "Cache-Control": "no-store"})
    return Opened(address=f"proxy/{sealed(ticket)}/{place.first}", lasts_s=LASTS_S)


def _site_of(kind: str, given: str) -> str:
    row = open_ledger().lease(given) if kind == "dask" else named(given).record
    return row.site_name


@router.options("/proxy/{text}/{path:path}")
def allow(text: str, path: str) -> Response:
    """Answer the browser's question whether a page without origin may send its own headers."""
    return Response(headers={**_NO_RIGHTS, "Access-Control-Allow-Headers": "*"})


@router.api_route("/proxy/{text}/{path:path}", methods=["GET", "HEAD", "POST"])
async def pass_on(text: str, path: str, request: Request) -> Response:
    """Return a page, or a file of it, as a stream."""
    place = await asyncio.to_thread(_place, unsealed(text))
    if request.method not in place.methods:
        raise HTTPException(405, {"what": "These pages are for reading only", "hint": ""})
    asked = {name: value for name in _ASKED if (value := request.headers.get(name))}
    body, session = await request.body(), _session(place)
    try:
        answer = await _ask(
            session, place, path, request.url.query,
            method=request.method, headers=asked, data=body or None,
        )  # fmt: skip
    except BaseException:
        await session.close()
        raise
    headers = {name: value for name in _PASSED if (value := answer.headers.get(name))}
    return StreamingResponse(_parts(session, answer), answer.status, {**headers, **_NO_RIGHTS})


@router.websocket("/proxy/{text}/{path:path}")
async def pass_messages(browser: WebSocket, text: str, path: str) -> None:
    """Pass messages both ways while a ticket is valid."""
    try:
        place = await asyncio.to_thread(_place, unsealed(text))
        async with (
            _session(place) as session,
            session.ws_connect(
                _below(place, path, browser.url.query),
                protocols=browser.scope["subprotocols"],
                max_msg_size=_MOST_BYTES,
            ) as target,
        ):
            await browser.accept(target.protocol)
            await _exchange(browser, target)
    except (HTTPException, HeadraceError, *_SILENT) as error:
        logger.info("Messages end: %s", error)
        if browser.application_state is not WebSocketState.DISCONNECTED:
            await browser.close(_REFUSED)


def _place(ticket: Ticket) -> Upstream:
    """Return the location of a ticket's pages, by the ledger and the files that it names."""
    if ticket.kind == "dask":
        pages = pages_of(LeaseFolder(Path(open_ledger().lease(ticket.id).folder)))
        return Upstream(
            url=pages.url,
            connector=partial(aiohttp.TCPConnector, ssl=pages.key),
            first="status",
            quick="health",
            methods=("GET", "HEAD"),
            hint=pages.by_hand,
        )
    socket = serve(named(ticket.id).folder)
    return Upstream(
        url="http://tensorboard/",
        connector=partial(aiohttp.UnixConnector, str(socket)),
        first="",
        quick="data/environment",
        methods=("GET", "HEAD", "POST"),  # it asks for series by POST, and changes nothing
        hint="Open it again.",
    )


def _session(place: Upstream) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=place.connector(),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=_PATIENCE,
        auto_decompress=False,
    )


async def _ask(
    session: aiohttp.ClientSession,
    place: Upstream,
    path: str,
    query: str = "",
    method: str = "GET",
    **more: Any,
) -> aiohttp.ClientResponse:  # fmt: skip
    """Return the answer of a server; raise 502 if there is none."""
    url = _below(place, path, query)
    try:
        return await session.request(method, url, allow_redirects=False, **more)
    except _SILENT as error:
        what = f"No answer from {url.host}:{url.port}: {error or 'it took too long'}"
        raise HTTPException(502, {"what": what, "hint": place.hint}) from error


def _below(place: Upstream, path: str, query: str) -> URL:
    """Return an address in the folder of a server, never beside or above it."""
    if ".." in path.split("/"):
        raise HTTPException(404, {"what": f"There is no page {path}", "hint": ""})
    return URL(f"{place.url}{quote(path)}{query and '?'}{query}", encoded=True)


async def _parts(
    session: aiohttp.ClientSession, answer: aiohttp.ClientResponse
) -> AsyncIterator[bytes]:
    async with session:
        async for part in answer.content.iter_any():
            yield part


async def _exchange(browser: WebSocket, target: aiohttp.ClientWebSocketResponse[Any]) -> None:
    """Pass messages until one side closes, or the ticket expires."""
    pumps = [asyncio.create_task(_up(browser, target)), asyncio.create_task(_down(target, browser))]
    await asyncio.wait(pumps, timeout=LASTS_S, return_when=asyncio.FIRST_COMPLETED)
    for pump in pumps:
        pump.cancel()
    await asyncio.gather(*pumps, return_exceptions=True)
    if browser.client_state is WebSocketState.CONNECTED:
        await browser.close(_GOING_AWAY)


async def _up(browser: WebSocket, target: aiohttp.ClientWebSocketResponse[Any]) -> None:
    while (message := await browser.receive())["type"] == "websocket.receive":
        if (content := message.get("bytes")) is not None:
            await target.send_bytes(content)
        else:
            await target.send_str(message["text"])


async def _down(target: aiohttp.ClientWebSocketResponse[Any], browser: WebSocket) -> None:
    async for message in target:
        if message.type is aiohttp.WSMsgType.BINARY:
            await browser.send_bytes(message.data)
        else:
            await browser.send_text(message.data)
