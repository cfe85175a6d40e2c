"""What is written down of a lease's nodes: when they were there, and came how far.

Instances write a file of their own: the job script begins it, beside the job's log, and the worker
adds when it has joined. Of all other nodes the lease's host keeps a list.
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
"""Environment variable of a worker that names its node's file; without it nothing is written."""

_FILES, _END = ".node", ".end"
_NOTICE = "taken away"
"""How the file of its end begins of a node that has notice, and goes on for a while."""


class NodeMarks(Record):
    """A node by itself; times are seconds since the epoch, null where it did not come so far."""

    kind: str = ""
    market: str = ""
    """How it is paid."""
    place: str = ""
    """Its zone."""
    booted_at: float | None = None
    """When its job script, or user data, began."""
    prepared_at: float | None = None
    """When the software was there, and the worker's process began."""
    joined_at: float | None = None
    """When its worker had joined."""
    ended_at: float | None = None


class NodeLine(Record):
    """A line of `nodes.jsonl`."""

    event: Literal["began", "joined", "ended"]
    name: str
    """Name of the node, such as `node-0`, which another one may get when it has ended."""
    at: float = Field(default_factory=time.time)
    """When, seconds since the epoch."""
    host: str = ""
    """Address of the machine, when its worker has joined."""
    asked_at: float | None = None
    """When its job was submitted; null for a node without a job of its own."""


class NodeSpan(Record):
    """A node from its begin to its end; times are seconds since the epoch."""

    machine_id: str
    """Its name; of the second one with that name `node-0#2`."""
    host: str = ""
    """Address of the machine; empty when its worker never joined."""
    asked_at: float | None = None
    started_at: float
    joined_at: float | None = None
    ended_at: float | None = None
    """Null when nobody wrote it down."""


def spans_of(folder: LeaseFolder) -> tuple[NodeSpan, ...]:
    """The nodes that the host of a lease has listed, in the order in which they were there."""
    return spans(read_lines(folder.nodes, NodeLine))


def spans(lines: Iterable[NodeLine]) -> tuple[NodeSpan, ...]:
    """The nodes that lines tell of; pure."""
    found: dict[str, NodeSpan] = {}
    newest: dict[str, str] = {}
    count = Counter[str]()
    for line in lines:
        if line.event == "began":
            count[line.name] += 1
            again = f"#{count[line.name]}" if count[line.name] > 1 else ""
            key = newest[line.name] = line.name + again
            found[key] = NodeSpan(machine_id=key, started_at=line.at, asked_at=line.asked_at)
        elif line.name in newest:  # else its first line is lost
            span = found[newest[line.name]]
            changes: dict[str, object] = {"ended_at": line.at}
            if line.event == "joined":
                changes = {"host": line.host, "joined_at": span.joined_at or line.at}
            found[span.machine_id] = span.model_copy(update=changes)
    return tuple(found.values())


def note_joined() -> None:
    """Write down, once, that the worker of this node has joined."""
    file = os.environ.pop(VARIABLE, "")  # none of its children is a node
    if not file:
        return
    try:
        with Path(file).open("a") as marks:
            marks.write(f"joined_at {time.time():.1f}\n")
    except OSError as error:
        logger.warning("When this node joined is not written down: %s", error)


def marks_of(folder: LeaseFolder) -> dict[str, NodeMarks]:
    """What the nodes of a lease wrote, by the machine."""
    files = itertools.chain(folder.path.glob(f"*{_FILES}"), folder.jobs.glob(f"*{_FILES}"))
    return {file.stem.rpartition(".")[2]: _read(file) for file in files}


def _read(file: Path) -> NodeMarks:
    """Lines `name value`; one that was cut off or damaged tells nothing."""
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
