"""One GET over a connection that is kept open: HTTP/1.1 as far as S3 answers plain requests.

`http.client` parses headers as those of e-mail, which takes longer than all the rest of a small
read. Whatever is not plain (no length, trailers, HTTP/1.0) is for the caller to ask otherwise.
"""

from __future__ import annotations

import socket
import ssl
from http.client import HTTPException
from typing import NamedTuple

_HEAD_BYTES = 64 * 2**10


class Response(NamedTuple):
    """An answer that came whole."""

    status: int
    """Status of HTTP."""
    headers: dict[bytes, bytes]
    """Headers by lower-case name."""
    content: bytes
    """The body."""


class Wire:
    """A connection to a server; for one thread at a time.

    Args:
        host: Name or address.
        port: Port.
        timeout_s: Longest wait for bytes.
        trust: For TLS; None for none.

    Raises:
        OSError: The server cannot be reached.
    """

    def __init__(
        self, host: str, port: int, timeout_s: float, trust: ssl.SSLContext | None
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if trust is not None:
            self._socket = trust.wrap_socket(self._socket, server_hostname=host)
        self.is_reusable = True
        """Whether the next request may be sent over it."""

    def get(self, target: str, headers: dict[str, str]) -> Response:
        """Send a GET request and read its answer.

        Args:
            target: Path and query.
            headers: Headers by name.

        Raises:
            OSError: The connection was cut, or timed out.
            HTTPException: The answer is not plain.
        """
        self.is_reusable = False
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._socket.sendall(f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
        head, start = self._head()
        status, found = parse_head(head)
        coding = found.get(b"transfer-encoding", b"")
        if coding == b"chunked":
            content = self._chunks(start)
        elif not coding and found.get(b"content-length", b"").isdigit():
            content = self._body(start, int(found[b"content-length"]))
        else:
            raise HTTPException("an answer without its length")
        self.is_reusable = b"close" not in found.get(b"connection", b"").lower()
        return Response(status, found, content)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _head(self) -> tuple[bytes, bytes]:
        """The bytes before the empty line, and those behind it that came too."""
        got = self._more()
        while (end := got.find(b"\r\n\r\n")) < 0:
            if len(got) > _HEAD_BYTES:
                raise HTTPException("an answer that is no HTTP")
            got += self._more()
        return got[:end], got[end + 4 :]

    def _more(self) -> bytes:
        got = self._socket.recv(_HEAD_BYTES)
        if not got:
            raise HTTPException("an answer that was cut")
        return got

    def _body(self, start: bytes, num_bytes: int) -> bytes:
        if len(start) == num_bytes:
            return start
        if len(start) > num_bytes:
            raise HTTPException("an answer longer than it says")
        content = bytearray(num_bytes)
        content[: len(start)] = start
        with memoryview(content) as view:
            at = len(start)
            while at < num_bytes:
                got = self._socket.recv_into(view[at:])
                if not got:
                    raise HTTPException("an answer that was cut")
                at += got
        return bytes(content)

    def _chunks(self, start: bytes) -> bytes:
        """A body in chunks, without trailers: what listings come as."""
        got, at = bytearray(start), 0
        parts: list[bytes] = []
        while True:
            while (end := got.find(b"\r\n", at)) < 0:
                got += self._more()
            num_bytes = _chunk_size(bytes(got[at:end]))
            at = end + 2
            while len(got) < at + num_bytes + 2:
                got += self._more()
            if got[at + num_bytes : at + num_bytes + 2] != b"\r\n":
                raise HTTPException("chunks that do not end, or trailers")
            if not num_bytes:
                return b"".join(parts)
            parts.append(bytes(got[at : at + num_bytes]))
            at += num_bytes + 2


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits.isalnum():  # int() would take a sign
        raise HTTPException("a chunk without its size")
    try:
        return int(digits, 16)
    except ValueError:
        raise HTTPException("a chunk without its size") from None


def parse_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    """Status and headers of an answer, by lower-case name.

    Raises:
        HTTPException: It is not of HTTP/1.1.
    """
    first, *lines = head.split(b"\r\n")
    version, _, rest = first.partition(b" ")
    if version != b"HTTP/1.1" or not rest[:3].isdigit():
        raise HTTPException("an answer that is not of HTTP/1.1")
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    return int(rest[:3]), headers
