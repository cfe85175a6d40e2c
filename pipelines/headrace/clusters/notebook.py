"""Jupyter on a node of a lease, and the way to it from this machine."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headrace.clusters.cancellable_call import wanted
from headrace.clusters.scheduler import security
from headrace.clusters.shared_calls import SharedCalls
from headrace.errors import LeaseLostError, UserError
from headrace.files.layout import LeaseFolder
from headrace.processes.children import Child, ChildGroup

_KINDS = ("jupyterlab", "notebook", "jupyter_server")
_LOOK_EVERY_S = 0.2


def run_notebook(
    folder: LeaseFolder, variables: Mapping[str, str], show: Callable[[str], None]
) -> None:
    """Run Jupyter on the first node of a lease until it ends; `show` gets its address here.

    It listens at a socket in a private folder. Relays, with TLS and the lease's key between them,
    lead there from a port of this machine's loopback.

    Raises:
        UserError: The node has no Jupyter, or it failed.
        LeaseLostError: The lease has ended.
    """
    topic, token = f"notebook-{secrets.token_hex(8)}", secrets.token_hex(24)
    given = {**variables, "JUPYTER_TOKEN": token}
    with SharedCalls.open(folder) as calls:
        node = calls.there()[0]
        calls.begin(topic, node, serve, folder, node.host, os.getcwd(), given, topic)
        while not (ready := calls.client.get_events(topic)):
            _look(calls)
        tls = security(folder).get_connection_args("client")["ssl_context"]
        connect = partial(asyncio.open_connection, node.host, ready[0][1], ssl=tls)
        with _relay(calls.client.loop, "127.0.0.1", connect) as port:
            show(f"http://127.0.0.1:{port}/?token={token}")
            while _look(calls):
                pass


def _look(calls: SharedCalls) -> bool:
    """Wait a moment; return whether the call still runs, or raise its error."""
    for ended in (*calls.drop_lost(calls.there()), *calls.ended(_LOOK_EVERY_S)):
        if ended.error or ended.lost:
            raise ended.error or LeaseLostError(f"The notebook has ended: {ended.lost}")
        return False
    return True


def serve(
    lease: LeaseFolder, host: str, folder: str, variables: Mapping[str, str], topic: str
) -> None:
    """Run Jupyter on this node while the call is wanted; report the port that leads to it."""
    from distributed import get_worker  # as in cancellable_call

    kind = next(filter(find_spec, _KINDS), None)
    if kind is None:
        raise UserError(
            f"{sys.executable} on {socket.gethostname()} has no Jupyter",
            f"Install it there: {sys.executable} -m pip install jupyterlab",
        )
    worker, python = get_worker(), (sys.executable, "-m")
    tls = security(lease).get_listen_args("worker")["ssl_context"]
    with TemporaryDirectory(prefix="headrace-notebook-") as private:
        place = Path(private, "socket")  # in the lease's folder the path may be too long
        options = ("--no-browser", "--allow-root", f"--ServerApp.sock={place}")
        child = Child(
            name="notebook",
            command=(*python, "headrace.processes", "--", *python, kind, *options),
            log=lease.path / "notebook.log",
            env=variables,
            folder=folder if Path(folder).is_dir() else None,
        )
        connect = partial(asyncio.open_unix_connection, place)
        with ChildGroup([child]) as group, _relay(worker.loop, host, connect, tls) as port:
            while not (place.exists() or group.ends()) and wanted():
                time.sleep(_LOOK_EVERY_S)
            if place.exists():
                worker.log_event(topic, port)
            (end,) = group.supervise(wanted)
    if end.failed:
        raise UserError(f"Jupyter ended with {end.cause}", f"{end.last_words}\nLog: {child.log}")


@contextmanager
def _relay(loop: Any, host: str, connect: Callable[[], Any], tls: Any = None) -> Iterator[int]:
    """Pass connections at a port of `host` on while the block runs; yield the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            others = await connect()
            await asyncio.gather(_copy(reader, others[1]), _copy(others[0], writer))
        except OSError:  # the other side is gone
            writer.close()

    starting = asyncio.start_server(answer, host, 0, ssl=tls)
    server = asyncio.run_coroutine_threadsafe(starting, loop.asyncio_loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.add_callback(server.close)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()
