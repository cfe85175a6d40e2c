"""A server in the place of a lease's Dask scheduler, which tells what it was asked."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from headrace.clusters.lease_files import write_heartbeat
from headrace.clusters.lease_records import LeaseInfo
from headrace.clusters.scheduler import make_keys
from headrace.files.atomic import write_json, write_record
from headrace.files.layout import LeaseFolder
from headrace.processes.identity import ProcessIdentity
from headrace.runs.runs import Run
from support.runs import lease_on_disk

SECRET = "5" * 64
"""Folder of the pages."""


class _Echo(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"path": self.path, "headers": dict(self.headers)}).encode()
        self.send_response(302 if self.path.endswith("away") else 200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "_token=theirs")
        self.send_header("Location", "https://example.invalid/")
        self.send_header("Content-Security-Policy", "default-src *")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def echoing_lease(run: Run, role: str) -> Iterator[LeaseFolder]:
    """A lease of this process that is ready; its pages answer while the block lasts."""
    folder = run.lease_folder(lease_on_disk(run, role, ProcessIdentity.of()))
    make_keys(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder.certificate, folder.key)
    context.load_verify_locations(folder.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    info = LeaseInfo(
        lease_id=folder.lease_id, backend="local", host=ProcessIdentity.of(), nodes=1,
        ready_at=1.0, scheduler_address="tls://127.0.0.1:1",
        dashboard_url=f"http://127.0.0.1:1/{SECRET}/status",
    )  # fmt: skip
    write_json(folder.scheduler_file, {"services": {"pages": server.server_port}})
    write_record(folder.info, info)
    write_heartbeat(folder)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield folder
    finally:
        server.shutdown()
        server.server_close()
