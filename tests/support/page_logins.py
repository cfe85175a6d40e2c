"""Logins of all roles for headrace's pages in the Airflow of the test session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from support.airflow_service import AirflowService

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
