"""What a node asks of its peers: what they have, and the bytes of a shard."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.states import FailureClass
from headrace.storage.checksums import chunk_buffer, write_verified
from headrace.storage.manifest import ShardInfo
from headrace.storage.peer_group import PeerGroup, signature
from headrace.storage.peer_server import LINE_BYTES, WAIT, News, Request

PATIENCE_S = 10.0
"""Seconds without a sign of life, or below the least rate, after which a peer is left."""

_LEAST_BYTES_PER_S = 2**20


class PeerLostError(HeadraceError):
    """A peer has gone, is too slow, or gives something else than it was asked for."""

    failure_class = FailureClass.LOST


@dataclass(frozen=True)
class PeerLink:
    """One peer.

    Attributes:
        group: The nodes.
        node: Index of the peer.
    """

    group: PeerGroup
    node: int

    def take(
        self, shard: ShardInfo, target: Path, tick: Callable[[int], None] | None = None
    ) -> None:
        """Take a shard; one that is not what its manifest says leaves no file behind.

        Args:
            shard: The shard.
            target: File to create, in a folder that exists.
            tick: Called with the bytes of every chunk; may raise to stop.

        Raises:
            PeerLostError: The peer does not give it, too slowly, or with wrong bytes.
            OSError: `target` cannot be written.
        """
        _, checksum = write_verified(self.fetch(shard.file, shard.num_bytes), target, tick)
        if checksum != shard.xxh3_128:
            target.unlink()
            raise PeerLostError(f"{shard.file} came with the checksum {checksum}")

    def fetch(self, file: str, num_bytes: int) -> Iterator[memoryview]:
        """Bytes of a shard, in chunks that are used before the next one is asked for.

        Raises:
            PeerLostError: The peer does not give them, or too slowly.
        """
        with self._reader(file) as (_, reader):
            size = _line(reader)
            while size == WAIT:
                size = _line(reader)
            if size != f"{num_bytes}\n".encode():
                raise PeerLostError(f"it does not give the {num_bytes} bytes of {file}")
            chunk = chunk_buffer()
            began, left_bytes = time.monotonic(), num_bytes
            while left_bytes:
                got = _read(reader, chunk[: min(left_bytes, len(chunk))])
                yield chunk[:got]
                left_bytes -= got
                took_s = time.monotonic() - began
                if took_s > PATIENCE_S and num_bytes - left_bytes < took_s * _LEAST_BYTES_PER_S:
                    raise PeerLostError(f"it gave less than {_LEAST_BYTES_PER_S} bytes a second")

    def follow(self, tell: Callable[[News], None], ended: threading.Event) -> None:
        """Hear what the peer has until `ended` is set.

        Raises:
            PeerLostError: The peer has gone.
        """
        with self._reader("") as (connection, reader):
            tell(_news(reader))  # from now on the peer knows that this node has come
            hang_up = threading.Thread(target=_hang_up, args=(connection, ended), daemon=True)
            hang_up.start()
            while not ended.is_set():
                tell(_news(reader))

    @contextmanager
    def _reader(self, file: str) -> Iterator[tuple[socket.socket, BufferedReader]]:
        port = self.group.port_of(self.node)
        if port is None:
            raise PeerLostError("it has not come")
        try:
            connection = socket.create_connection(
                (self.group.hosts[self.node], port), timeout=PATIENCE_S
            )
        except OSError as error:
            raise PeerLostError(f"it cannot be reached: {error}") from error
        with connection, connection.makefile("rb") as reader:
            challenge = _line(reader).decode(errors="replace").strip()
            proof = signature(self.group.key(), challenge, self.group.index, file)
            request = Request(node=self.group.index, file=file, signature=proof)
            try:
                connection.sendall(f"{request.model_dump_json()}\n".encode())
            except OSError as error:
                raise PeerLostError(f"it has gone: {error}") from error
            yield connection, reader


def _hang_up(connection: socket.socket, ended: threading.Event) -> None:
    ended.wait()
    with suppress(OSError):  # the peer was first
        connection.shutdown(socket.SHUT_RDWR)


def _news(reader: BufferedReader) -> News:
    try:
        return News.model_validate_json(_line(reader))
    except ValueError as error:
        raise PeerLostError("it has gone or talks nonsense") from error


def _line(reader: BufferedReader) -> bytes:
    try:
        return reader.readline(LINE_BYTES)
    except OSError as error:
        raise PeerLostError(f"it has gone: {error}") from error


def _read(reader: BufferedReader, chunk: memoryview) -> int:
    try:
        got = reader.readinto1(chunk)
    except OSError as error:
        raise PeerLostError(f"it has gone: {error}") from error
    if not got:
        raise PeerLostError("it has gone")
    return got
