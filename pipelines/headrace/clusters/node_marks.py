"""Records of a lease's nodes: when each was available, and how far its start came.

Instances write their own file: the job script begins it, beside the job's log, and the worker adds
the time when it has joined. For all other nodes the lease's host writes a list.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field

from headrace.files.layout import LeaseFolder
from headrace.files.lines import read_lines
from headrace.record import Record

logger = logging.getLogger(__name__)

VARIABLE = "HEADRACE_NODE_MARKS"
"""Environment variable of a worker that names its node's file; if unset, nothing is written."""

_FILES, _END = ".node", ".end"
_NOTICE = "taken away"
"""Begin of the end file of a node that has notice, but still runs for a while."""


class NodeMarks(Record):
    """A node's own record; times are seconds since the epoch, null if it did not come so far."""

    kind: str = ""
    market: str = ""
    """How it is paid for."""
    place: str = ""
    """Its zone."""
    booted_at: float | None = None
    """When its job script, or user data, began."""
    prepared_at: float | None = None
    """When the software was ready, and the worker's process began."""
    joined_at: float | None = None
    """When its worker had joined."""
    ended_at: float | None = None


class NodeLine(Record):
    """A line of `nodes.jsonl`."""

    event: Literal["began", "joined", "ended"]
    name: str
    """Name of the node, as `node-0`; another one may get it after its end."""
    at: float = Field(default_factory=time.time)
    """Time, seconds since the epoch."""
    host: str = ""
    """Address of the machine, if its worker has joined."""
    asked_at: float | None = None
    """When its job was submitted; null for a node without its own job."""


class NodeSpan(Record):
    """A node from its begin to its end; times are seconds since the epoch."""

    machine_id: str
    """Its name; for the second node with that name `node-0#2`."""
    host: str = ""
    """Address of the machine; empty if its worker never joined."""
    asked_at: float | None = None
    started_at: float
    joined_at: float | None = None
    ended_at: float | None = None
    """Null if not recorded."""


def spans_of(folder: LeaseFolder) -> tuple[NodeSpan, ...]:
    """Return the nodes that the host of a lease has listed, in the order of their begin."""
    return spans(read_lines(folder.nodes, NodeLine))


def spans(lines: Iterable[NodeLine]) -> tuple[NodeSpan, ...]:
    """Combine lines to nodes; pure."""
    found: dict[str, NodeSpan] = {}
    newest: dict[str, str] = {}
    count = Counter[str]()
    for line in lines:
        if line.event == "began":
            count[line.name] += 1
            again = f"#{count[line.name]}" if count[line.name] > 1 else ""
            key = newest[line.name] = line.name + again
            found[key] = NodeSpan(machine_id=key, started_at=line.at, asked_at=line.asked_at)
        elif line.name in newest:  # otherwise its first line is lost
            span = found[newest[line.name]]
            changes: dict[str, object] = {"ended_at": line.at}
            if line.event == "joined":
                changes = {"host": line.host, "joined_at": span.joined_at or line.at}
            found[span.machine_id] = span.model_copy(update=changes)
    return tuple(found.values())


def note_joined() -> None:
    """Record, once, that the worker of this node has joined."""
    file = os.environ.pop(VARIABLE, "")  # its children must not record it
    if not file:
        return
    try:
        with Path(file).open("a") as marks:
            marks.write(f"joined_at {time.time():.1f}\n")
    except OSError as error:
        logger.warning("The time when this node joined is not recorded: %s", error)


def marks_of(folder: LeaseFolder) -> dict[str, NodeMarks]:
    """Return the records that the nodes of a lease wrote, by machine."""
    files = itertools.chain(folder.path.glob(f"*{_FILES}"), folder.jobs.glob(f"*{_FILES}"))
    return {file.stem.rpartition(".")[2]: _read(file) for file in files}


def _read(file: Path) -> NodeMarks:
    """Read lines `name value`; skip cut or damaged ones."""
    found: dict[str, str | float] = {}
    for name, _, value in (
        line.partition(" ") for line in file.read_text("utf-8", "replace").splitlines()
    ):
        if name.endswith("_at") and name in NodeMarks.model_fields:
            with suppress(ValueError):
                found[name] = float(value)
        elif name in NodeMarks.model_fields:
            found[name] = value
    end = file.with_suffix(_END)
    if end.exists() and not end.read_text("utf-8", "replace").startswith(_NOTICE):
        found["ended_at"] = end.stat().st_mtime
    return NodeMarks.model_validate(found)
