"""Exchange of shards between nodes of a group: HTTP, one request per shard.

`GET /<file>` needs the proof of `PeerGroup.sign` in `Authorization`. The answer is one newline a
second while the shard is being fetched, then `+` and its bytes, or `-` if the node does not hold
it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

from headrace.errors import HeadraceError
from headrace.files.checksums import CHUNK_BYTES, write_verified
from headrace.files.manifest import ShardInfo
from headrace.record import Record
from headrace.states import FailureClass


class Notice(Record):
    """Report of a node to the others of its group."""

    port: int
    """Port of its `ShardServer`."""
    files: tuple[str, ...]
    """Shards on the node."""
    is_staged: bool
    """Whether these are all that it will hold."""


@dataclass(frozen=True, kw_only=True)
class PeerGroup:
    """The nodes, from the view of one of them."""

    folder: Path
    """Folder on shared storage for their reports."""
    hosts: tuple[str, ...]
    """Address of each node, in order of their indices."""
    index: int
    """This node."""

    @property
    def others(self) -> tuple[int, ...]:
        """Indices of the other nodes, the next one first."""
        count = len(self.hosts)
        return tuple((self.index + step) % count for step in range(1, count))

    def order(self, number: int) -> tuple[int, ...]:
        """Return the nodes in the order in which they should fetch a shard, by its number."""
        count = len(self.hosts)
        return tuple((number + step) % count for step in range(count))

    def part(self, number: int) -> tuple[int, ...]:
        """Return a sort key of shards by number: shards for this node to hold come first.

        Shards are assigned to nodes cyclically. If a node has more room, it takes further shards
        from the end, because the others hold the first ones of theirs.
        """
        turn, node = divmod(number, len(self.hosts))
        distance = (node - self.index) % len(self.hosts)
        return (1, -turn, distance) if distance else (0, turn)

    def sign(self, file: str) -> str:
        """Return the proof that a client can read the group's folder."""
        key = (self.folder / "key").read_bytes()
        return hmac.new(key, file.encode(), hashlib.sha256).hexdigest()

    def announce(self, port: int, files: Iterable[str], *, is_staged: bool) -> None:
        """Write this node's `Notice` for the others."""
        notice = Notice(port=port, files=tuple(files), is_staged=is_staged)
        self._notice(self.index).write_text(f"{notice.model_dump_json()}\n")

    def notice_of(self, index: int) -> Notice | None:
        """Return a node's report; None if there is none yet."""
        text = self._notice(index).read_text()
        return Notice.model_validate_json(text) if text.endswith("\n") else None

    def held_by(self, index: int) -> frozenset[str] | None:
        """Return the shards that a node holds; None while it stages."""
        notice = self.notice_of(index)
        return frozenset(notice.files) if notice and notice.is_staged else None

    def _notice(self, index: int) -> Path:
        return self.folder / f"node-{index}"


def groups_of(
    folder: Path, hosts: Sequence[str], mode: Literal["auto", "never"]
) -> list[PeerGroup | None]:
    """Return the group of each node: all nodes, unless some share a host and so its storage.

    The nodes' files are created here, empty, and later written in place: NFS clients cache for half
    a minute that a file does not exist, but read its content when they open it.

    The result has the group from the view of each node; None for a node that stages alone.
    """
    if mode == "never" or len(hosts) < 2 or len(set(hosts)) < len(hosts):
        return [None] * len(hosts)
    meeting = folder / f"peers-{uuid.uuid4().hex}"
    meeting.mkdir(mode=0o700, parents=True)
    for name in ("key", *(f"node-{index}" for index in range(len(hosts)))):
        (meeting / name).touch(mode=0o600, exist_ok=False)
    (meeting / "key").write_bytes(secrets.token_bytes(32))
    return [
        PeerGroup(folder=meeting, hosts=tuple(hosts), index=index) for index in range(len(hosts))
    ]


logger = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""Seconds without a byte, or below the least rate, after which a peer is abandoned."""

TELL_S = 1.0
"""Seconds between two bytes to a peer that waits for a shard."""

_LEAST_BYTES_PER_S = 2**20
_THREADS_PER_NODE = 128  # two per connection: one answers, one sends newlines
_WAIT, _HERE, _NOT_HERE = b"\n", b"+", b"-"

Holding = Callable[[str], AbstractContextManager[Path]]
"""Keeps a shard on this node while a block runs; raises `KeyError` for an unavailable shard."""


class PeerLostError(HeadraceError):
    """A peer has gone, is too slow, or sends wrong data."""

    failure_class = FailureClass.LOST


class ShardServer(ThreadingHTTPServer):
    """Serves shards to nodes with the group's key, until `close`."""

    request_queue_size = 128

    def __init__(self, group: PeerGroup, holding: Holding) -> None:
        host = group.hosts[group.index]
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.group = group
        self.holding = holding
        self._most_threads = threading.active_count() + _THREADS_PER_NODE * len(group.hosts)
        super().__init__((host, 0), _Answer)
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; without a free file descriptor, try again a moment later."""
        try:
            return super().get_request()
        except OSError as error:
            logger.warning("A peer's connection could not be accepted: %s", error)
            time.sleep(0.05)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Answer in a thread, unless there are too many."""
        return threading.active_count() < self._most_threads

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error; the peer notices it by itself."""
        logger.info("A peer's request failed: %s", sys.exc_info()[1])


class _Answer(BaseHTTPRequestHandler):
    server: ShardServer
    timeout = 20.0

    def do_GET(self) -> None:
        file = unquote(self.path.removeprefix("/"))
        proof = self.headers.get("Authorization", "")
        if not hmac.compare_digest(proof.encode(), self.server.group.sign(file).encode()):
            self.send_response_only(HTTPStatus.FORBIDDEN)
            self.end_headers()
            return
        self.send_response_only(HTTPStatus.OK)
        self.end_headers()
        with ExitStack() as held:
            try:
                with self._telling_to_wait():
                    path = held.enter_context(self.server.holding(file))
                content = held.enter_context(path.open("rb"))
            except (KeyError, FileNotFoundError):
                self.wfile.write(_NOT_HERE)
            else:
                self.wfile.write(_HERE)
                self.connection.sendfile(content, count=os.fstat(content.fileno()).st_size or None)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)

    @contextmanager
    def _telling_to_wait(self) -> Iterator[None]:
        done = threading.Event()

        def tell() -> None:
            with suppress(OSError):  # the peer has gone; the thread that sends the shard reports it
                while not done.wait(TELL_S):
                    self.wfile.write(_WAIT)

        telling = threading.Thread(target=tell, daemon=True)
        telling.start()
        try:
            yield
        finally:
            done.set()
            telling.join()


@dataclass(frozen=True)
class Peer:
    """A node that serves at a port."""

    group: PeerGroup
    node: int
    port: int

    def take(self, shard: ShardInfo, target: Path, tick: Callable[[int], None]) -> bool:
        """Copy a shard into a file; return whether the peer has it.

        `tick` is called with the bytes of every chunk, and about every second. A `PeerLostError`
        (the peer has gone, is too slow, or sends wrong bytes) leaves no file.
        """
        with self._asked(shard.file) as answer:
            sign = _read(answer, 1)
            while sign == _WAIT:
                tick(0)
                sign = _read(answer, 1)
            if sign == _NOT_HERE:
                return False
            _, checksum = write_verified(_content(answer, shard.num_bytes), target, tick)
        if checksum != shard.xxh3_128:
            target.unlink()
            raise PeerLostError(f"{shard.file} came with the checksum {checksum}")
        return True

    def is_alive(self) -> bool:
        """Whether it answers."""
        try:
            with self._asked("") as answer:
                return _read(answer, 1) == _NOT_HERE
        except PeerLostError:
            return False

    @contextmanager
    def _asked(self, file: str) -> Iterator[HTTPResponse]:
        host, proof = self.group.hosts[self.node], {"Authorization": self.group.sign(file)}
        with closing(HTTPConnection(host, self.port, timeout=PATIENCE_S)) as connection:
            try:
                connection.request("GET", f"/{quote(file)}", headers=proof)
                answer = connection.getresponse()
            except (OSError, HTTPException) as error:
                raise PeerLostError(f"it cannot be reached: {error}") from error
            if answer.status != HTTPStatus.OK:
                raise PeerLostError(f"it answers {answer.status}")
            yield answer


def _content(answer: HTTPResponse, num_bytes: int) -> Iterator[memoryview]:
    chunk = memoryview(bytearray(CHUNK_BYTES))
    began, left_bytes = time.monotonic(), num_bytes
    while left_bytes:
        got = _read(answer, left_bytes, chunk)
        yield got
        left_bytes -= len(got)
        took_s = time.monotonic() - began
        if took_s > PATIENCE_S and num_bytes - left_bytes < took_s * _LEAST_BYTES_PER_S:
            raise PeerLostError(f"it sent less than {_LEAST_BYTES_PER_S} bytes per second")


def _read(answer: HTTPResponse, num_bytes: int, chunk: memoryview | None = None) -> memoryview:
    chunk = (chunk or memoryview(bytearray(num_bytes)))[:num_bytes]
    try:
        got = answer.readinto(chunk)
    except (OSError, HTTPException) as error:
        raise PeerLostError(f"it has gone: {error}") from error
    if not got:
        raise PeerLostError("it has gone")
    return chunk[:got]
