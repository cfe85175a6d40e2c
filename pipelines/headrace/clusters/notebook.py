"""A Jupyter server on a node of a lease, and the way to it from this machine."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from ssl import SSLContext
from tempfile import TemporaryDirectory
from typing import Any

from headrace.clusters.cancellable_call import wanted
from headrace.clusters.scheduler import security
from headrace.clusters.shared_calls import SharedCalls
from headrace.errors import LeaseLostError, UserError
from headrace.files.layout import LeaseFolder
from headrace.processes.children import Child, ChildGroup

_KINDS = ("jupyterlab", "notebook", "jupyter_server")
_CHUNK_BYTES = 2**16
_LOOK_EVERY_S = 0.2

_Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def run_notebook(
    folder: LeaseFolder, variables: Mapping[str, str], show: Callable[[str], None]
) -> None:
    """Run Jupyter on the first node of a lease until it ends or this is interrupted.

    On the node it listens at a socket in a private folder. A TLS connection, with the key of the
    lease, leads there from a port of this machine's loopback.

    Args:
        folder: The lease, which is ready.
        variables: Environment variables of Jupyter, besides those of the lease.
        show: Called with Jupyter's address on this machine, when it can be opened.

    Raises:
        UserError: The node has no Jupyter, or it failed.
        LeaseLostError: The lease has ended.
        OSError: The node cannot be reached from here.
    """
    topic, token = f"notebook-{secrets.token_hex(8)}", secrets.token_hex(24)
    given = {**variables, "JUPYTER_TOKEN": token}
    with SharedCalls.open(folder) as calls:
        node, loop = calls.there()[0], calls.client.loop
        calls.begin(topic, node, serve, str(folder.path), node.host, os.getcwd(), given, topic)
        while _runs(calls) and not (ready := calls.client.get_events(topic)):
            pass
        tls = security(folder).get_connection_args("client")["ssl_context"]
        connect = partial(asyncio.open_connection, node.host, ready[0][1], ssl=tls)
        asyncio.run_coroutine_threadsafe(connect(), loop.asyncio_loop).result()[1].close()
        with _relay(loop, "127.0.0.1", connect) as port:
            show(f"http://127.0.0.1:{port}/?token={token}")
            while _runs(calls):
                pass


def _runs(calls: SharedCalls) -> bool:
    """Wait a moment; return whether the call still runs, or raise its error."""
    for ended in (*calls.drop_lost(calls.there()), *calls.ended(_LOOK_EVERY_S)):
        if ended.error or ended.lost:
            raise ended.error or LeaseLostError(f"The notebook has ended: {ended.lost}")
        return False
    return True


def serve(lease: str, host: str, folder: str, variables: Mapping[str, str], topic: str) -> None:
    """Run Jupyter on this node while the call is wanted; report the port that leads to it.

    Raises:
        UserError: This node has no Jupyter, or it failed.
    """
    kind = next(filter(find_spec, _KINDS), None)
    if kind is None:
        raise UserError(
            f"{sys.executable} on {socket.gethostname()} has no Jupyter",
            f"Install it there: {sys.executable} -m pip install jupyterlab",
        )
    from distributed import get_worker  # as in cancellable_call

    files, worker = LeaseFolder(Path(lease)), get_worker()
    tls = security(files).get_listen_args("worker")["ssl_context"]
    with TemporaryDirectory(prefix="headrace-notebook-") as private:
        place = Path(private, "socket")  # a path in the lease's folder may be too long for a socket
        options = ("--no-browser", "--allow-root", f"--ServerApp.sock={place}")
        child = Child(
            name="notebook",
            command=(sys.executable, "-m", "headrace.processes", "--",
                     sys.executable, "-m", kind, *options),
            log=files.path / "notebook.log",
            env=variables,
            folder=folder if Path(folder).is_dir() else None,
        )  # fmt: skip
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
def _relay(loop: Any, host: str, connect: _Connect, tls: SSLContext | None = None) -> Iterator[int]:
    """Pass connections at a port of `host` on while the block runs; yield the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            others = await connect()
        except OSError:  # Jupyter is not there any more
            writer.close()
            return
        await asyncio.gather(_copy(reader, others[1]), _copy(others[0], writer))

    starting = asyncio.start_server(answer, host, 0, ssl=tls)
    server = asyncio.run_coroutine_threadsafe(starting, loop.asyncio_loop).result()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.add_callback(server.close)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
