"""headrace's pages for tests: who logs in, and pages of a lease that tell what reached them."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import NamedTuple

import pytest

from headrace.clusters.lease_files import write_heartbeat
from headrace.clusters.scheduler import make_keys
from headrace.files.atomic import write_json, write_record
from headrace.files.layout import LeaseFolder
from headrace.processes.identity import ProcessIdentity
from headrace.runs.runs import Run
from support.airflow_service import AirflowService
from support.factories import demo_info
from support.runs import lease_on_disk

ROLES = ("viewer", "user", "op", "admin")
NOBODY = "nobody"
"""Logged in, without any role."""

_ASKED = f"""
import json, time
from unittest.mock import patch
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from headrace_pages.app import app
from headrace_pages.tickets import LASTS_S, Ticket, sealed
tokens = {{}}
for name in {(*ROLES, NOBODY)!r}:
    role = None if name == {NOBODY!r} else name.upper()
    user = SimpleAuthManagerUser(username=name, role=role)
    tokens[name] = SimpleAuthManager().generate_jwt(user)
with patch("itsdangerous.timed.time.time", return_value=time.time() - LASTS_S - 1):
    old = sealed(Ticket(kind="dask", id="demo-1", user="viewer"))
print(json.dumps([tokens, [route.path for route in app.routes], old]))
"""


class Doors(NamedTuple):
    """What the app has, and who may come."""

    tokens: dict[str, str]
    """A login for each role, signed as the server signs them."""
    paths: list[str]
    """Of all endpoints."""
    old_ticket: str
    """One that was good once."""


@pytest.fixture(scope="session")
def doors(airflow_service: AirflowService) -> Doors:
    """Asked in a process with the server's settings."""
    environment = {**os.environ, **airflow_service.server.environment}
    command = [sys.executable, "-W", "ignore", "-c", _ASKED]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Doors(*json.loads(told.stdout.splitlines()[-1]))


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
    info = demo_info(folder.lease_id, dashboard_url=f"http://127.0.0.1:1/{SECRET}/status")
    write_json(folder.scheduler_file, {"services": {"pages": server.server_port}})
    write_record(folder.info, info)
    write_heartbeat(folder)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield folder
    finally:
        server.shutdown()
        server.server_close()
