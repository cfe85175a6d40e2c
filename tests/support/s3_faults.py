"""A proxy before an S3 server that fails as it is told."""

from __future__ import annotations

import http.client
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Refuse:
    """Answer with an error of S3."""

    status: int
    code: str


@dataclass(frozen=True)
class Cut:
    """Close the connection after some bytes of the body."""

    after_bytes: int


Fault = Refuse | Cut


@dataclass
class Faults:
    """What a proxy does to the requests to come."""

    endpoint_url: str
    """The proxy's URL."""
    waiting: deque[Fault] = field(default_factory=deque)
    """Faults of the next requests that `concerns` accepts, one each."""
    always: Fault | None = None
    """Fault of all requests after those."""
    concerns: Callable[[str, str], bool] = lambda method, path: True
    """Whether a request, by method and path, is disturbed."""
    requests: list[str] = field(default_factory=list)
    """Methods and paths of all requests so far."""

    def next(self, method: str, path: str) -> Fault | None:
        """The fault of a request that has come."""
        self.requests.append(f"{method} {path}")
        if not self.concerns(method, path):
            return None
        return self.waiting.popleft() if self.waiting else self.always


@contextmanager
def faulty(upstream: str, address: str = "127.0.0.1") -> Iterator[Faults]:
    """A proxy before the server at `upstream`; without faults it only hands on."""
    server = ThreadingHTTPServer((address, 0), _Handler)
    server.daemon_threads = True
    server.upstream = urlsplit(upstream)  # type: ignore[attr-defined]
    server.faults = Faults(  # type: ignore[attr-defined]
        endpoint_url=f"http://{address}:{server.server_port}"
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.faults  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.faults.next(self.command, self.path)  # type: ignore[attr-defined]
        if isinstance(fault, Refuse):
            self._refuse(fault)
        else:
            self._hand_on(body, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815

    def _refuse(self, fault: Refuse) -> None:
        text = f"<Error><Code>{fault.code}</Code><Message>told so</Message></Error>".encode()
        self.send_response(fault.status)
        self.send_header("Content-Length", "0" if self.command == "HEAD" else str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _hand_on(self, body: bytes, cut: Cut | None) -> None:
        upstream = self.server.upstream  # type: ignore[attr-defined]
        connection = http.client.HTTPConnection(upstream.hostname, upstream.port)
        try:
            connection.request(self.command, self.path, body or None, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content if cut is None else content[: cut.after_bytes])
        self.close_connection = cut is not None

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""
