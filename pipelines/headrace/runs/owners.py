"""Requesters and owners of runs; an owner is a process or a DAG run of Airflow."""

from __future__ import annotations

import json

from headrace.files.atomic import read_bytes
from headrace.files.layout import RunFolder
from headrace.processes.identity import ProcessIdentity

_PROCESS = "cli"


def user_of(run: RunFolder, owner: str) -> str:
    """Return the requester of a run; the owner's text if its folder has none."""
    try:
        user = json.loads(read_bytes(run.provenance) or b"{}").get("user")
    except (ValueError, OSError, AttributeError):
        return owner
    return user if user and isinstance(user, str) else owner


def process_owner() -> str:
    """Return the owner text of this process."""
    me = ProcessIdentity.of()
    return f"{_PROCESS}:{me.host}:{me.pid}:{me.started_s!r}"


def owner_process(owner: str) -> ProcessIdentity | None:
    """Return the process that an owner text names; None for owners of another kind."""
    kind, _, rest = owner.partition(":")
    if kind != _PROCESS:
        return None
    host, pid, started_s = rest.rsplit(":", 2)
    return ProcessIdentity(host=host, pid=int(pid), started_s=float(started_s))


def owner_is_gone(owner: str) -> bool:
    """Whether the owner is a process of this machine that has ended."""
    process = owner_process(owner)
    return process is not None and process.is_here and not process.is_alive
