"""Who answers for a run, as text in the ledger."""

from __future__ import annotations

from headrace.processes import ProcessIdentity

_PROCESS = "cli"


def process_owner() -> str:
    """Owner text of this very process."""
    me = ProcessIdentity.of()
    return f"{_PROCESS}:{me.host}:{me.pid}:{me.started_s!r}"


def owner_process(owner: str) -> ProcessIdentity | None:
    """The process that an owner text names; None for owners of another kind."""
    kind, _, rest = owner.partition(":")
    if kind != _PROCESS:
        return None
    host, pid, started_s = rest.rsplit(":", 2)
    return ProcessIdentity(host=host, pid=int(pid), started_s=float(started_s))


def owner_is_gone(owner: str) -> bool:
    """Whether the owner is a process of this machine that has ended."""
    process = owner_process(owner)
    return process is not None and process.is_here and not process.is_alive
