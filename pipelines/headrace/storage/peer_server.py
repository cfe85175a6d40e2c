"""What a node serves to its peers: the shards that it has, to those who know the group's key."""

from __future__ import annotations

import hmac
import logging
import secrets
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from headrace.errors import HeadraceError
from headrace.storage.peer_group import PeerGroup, signature

logger = logging.getLogger(__name__)

TELL_S = 1.0
"""Seconds between two lines to a peer that follows, at most."""

LINE_BYTES = 2**20
"""Longest line of the protocol."""

WAIT = b"\n"
"""Line that says: it is being fetched."""

_LOOK_S = 0.05
_TIMEOUT_S = 20.0
_CONNECTIONS_PER_NODE = 64


Holding = Callable[[str], AbstractContextManager[Path]]
"""Gets a shard that is not here, and keeps it while a block runs."""


class Request(BaseModel):
    """First line of a connection, from the peer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: int
    """Index of the peer."""
    file: str = ""
    """Shard that it wants; empty to follow what this node has."""
    signature: str
    """Of the server's challenge, `node` and `file`."""


class News(BaseModel):
    """What a node has, line by line, to those who follow it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: tuple[str, ...]
    """Shards that it has now and that earlier lines did not name."""
    moved_bytes: int
    """Bytes that it has fetched so far."""
    is_complete: bool
    """Whether it has all that it will have."""


class Shelf:
    """What a node has to give; filled by the threads that fetch, read by those that serve."""

    def __init__(self) -> None:
        self._paths: dict[str, Path] = {}
        self._moved_bytes = 0
        self._is_complete = False
        self.holding: Holding | None = None
        self._lock = threading.Lock()

    def put(self, file: str, path: Path) -> None:
        """Offer a shard that lies whole at `path`."""
        with self._lock:
            self._paths[file] = path

    def moved(self, num_bytes: int) -> None:
        """Tell that bytes have come."""
        with self._lock:
            self._moved_bytes += num_bytes

    def complete(self) -> None:
        """Tell that there will be no more."""
        with self._lock:
            self._is_complete = True

    @property
    def files(self) -> tuple[str, ...]:
        """Shards that this node has."""
        with self._lock:
            return tuple(self._paths)

    def fetch_others(self, holding: Holding) -> None:
        """Give what is not here, too.

        Args:
            holding: Called with a shard's name, gives where it lies for the time of a block;
                raises `ValueError` for what is no shard.
        """
        self.holding = holding

    def path(self, file: str) -> Path | None:
        """Where a shard lies; None when this node does not have it."""
        return self._paths.get(file)

    def news(self, num_known: int) -> News:
        """What there is beyond the first `num_known` shards."""
        with self._lock:
            files = tuple(list(self._paths)[num_known:])
            return News(files=files, moved_bytes=self._moved_bytes, is_complete=self._is_complete)


class ShardServer:
    """Serves a shelf on this node's address, from its making until `close`.

    A peer connects, is given a challenge, and answers with a signed `Request`. Who asks for a
    shard gets its size in a line and then its bytes, after empty lines while it is being fetched;
    who asks for none gets lines of `News`.

    Args:
        group: The nodes.
        shelf: What is served.

    Raises:
        OSError: The address is not one of this machine.
    """

    def __init__(self, group: PeerGroup, shelf: Shelf) -> None:
        self._group = group
        self._key = group.key()
        self._shelf = shelf
        self._changed = threading.Condition()
        self._open: Counter[int] = Counter()
        self._seen: set[int] = set()
        self._closed = threading.Event()
        self._slots = threading.BoundedSemaphore(_CONNECTIONS_PER_NODE * len(group.hosts))
        host = group.hosts[group.index]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        threading.Thread(target=self._accept, name="peer-accept", daemon=True).start()

    @property
    def port(self) -> int:
        """Port that it listens at."""
        port: int = self._listener.getsockname()[1]
        return port

    def wait_until_unneeded(self, patience_s: float, check: Callable[[], None]) -> None:
        """Serve until every other node has come and gone.

        Args:
            patience_s: How long to wait for nodes that have not come yet.
            check: Called twice a second; may raise to stop.
        """
        deadline = time.monotonic() + patience_s
        while True:
            with self._changed:
                if not self._is_needed(deadline):
                    return
                self._changed.wait(0.5)
            check()

    def close(self) -> None:
        """Serve no longer."""
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _is_needed(self, deadline: float) -> bool:
        others = set(self._group.others)
        awaited = others - self._seen if time.monotonic() < deadline else set()
        return bool(awaited) or any(self._open[node] for node in others)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # closed, or the peer was gone already, or no file is free
                if not self._closed.wait(_LOOK_S):
                    logger.warning("A peer could not be let in: %s", error)
                continue
            if self._slots.acquire(blocking=False):
                serve = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                serve.start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_TIMEOUT_S)
                request = self._admit(connection)
                with self._counted(request.node):
                    if request.file:
                        self._send(connection, request.file)
                    else:
                        self._tell(connection)
        except (OSError, ValueError, HeadraceError) as error:
            logger.info("A peer's connection ended: %s", error)
        finally:
            self._slots.release()

    def _admit(self, connection: socket.socket) -> Request:
        challenge = secrets.token_hex(16)
        connection.sendall(f"{challenge}\n".encode())
        with connection.makefile("rb") as lines:
            request = Request.model_validate_json(lines.readline(LINE_BYTES))
        wanted = signature(self._key, challenge, request.node, request.file)
        if not hmac.compare_digest(wanted.encode(), request.signature.encode()):
            raise ValueError("it does not know the key")
        return request

    @contextmanager
    def _counted(self, node: int) -> Iterator[None]:
        with self._changed:
            self._seen.add(node)
            self._open[node] += 1
        try:
            yield
        finally:
            with self._changed:
                self._open[node] -= 1
                self._changed.notify_all()

    def _send(self, connection: socket.socket, name: str) -> None:
        path = self._shelf.path(name)
        with ExitStack() as held:
            if path is None:
                if self._shelf.holding is None:
                    raise ValueError(f"it asked for '{name}', which is not here")
                with _told_to_wait(connection):
                    path = held.enter_context(self._shelf.holding(name))
            file = held.enter_context(path.open("rb"))
            num_bytes = path.stat().st_size
            connection.sendall(f"{num_bytes}\n".encode())
            connection.sendfile(file, count=num_bytes or None)

    def _tell(self, connection: socket.socket) -> None:
        """Tell the news until the peer hangs up: it needs nothing more."""
        gone = select.poll()
        gone.register(connection, select.POLLIN)
        told, told_at = None, float("-inf")
        num_known = 0
        while not self._closed.is_set():
            news = self._shelf.news(num_known)
            now = time.monotonic()
            if news.files or news.is_complete is not told or now - told_at > TELL_S:
                connection.sendall(f"{news.model_dump_json()}\n".encode())
                num_known += len(news.files)
                told, told_at = news.is_complete, now
            if gone.poll(1000 * _LOOK_S):
                return


@contextmanager
def _told_to_wait(connection: socket.socket) -> Iterator[None]:
    """Let the peer know, while the block runs, that this node is at it."""
    done = threading.Event()

    def tell() -> None:
        with suppress(OSError):  # the peer has gone: who sends it the shard will find out
            while not done.wait(TELL_S):
                connection.sendall(WAIT)

    telling = threading.Thread(target=tell, name="peer-wait", daemon=True)
    telling.start()
    try:
        yield
    finally:
        done.set()
        telling.join()
