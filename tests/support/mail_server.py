"""A server that takes mails, and the Airflow connection that leads to it."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Mailbox(socketserver.StreamRequestHandler):
    """As much of SMTP as `smtplib` and `aiosmtplib` need."""

    server: _Server

    def handle(self) -> None:
        self._say("220 ready")
        for line in iter(self.rfile.readline, b""):
            command = line.split()[0].upper()
            if command == b"DATA":
                self._say("354 go on")
                self.server.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
            self._say("221 bye" if command == b"QUIT" else "250 ok")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Mailbox)
        self.mails: list[str] = []


@contextmanager
def mail_server() -> Iterator[tuple[str, list[str]]]:
    """A server's connection, as in `AIRFLOW_CONN_SMTP_DEFAULT`, and the mails that have arrived."""
    with _Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        yield f"smtp://127.0.0.1:{port}?disable_ssl=true&disable_tls=true", server.mails
        server.shutdown()
