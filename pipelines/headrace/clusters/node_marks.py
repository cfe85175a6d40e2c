"""What the nodes of a lease write of themselves: what they are, and when they came how far.

The job script begins the file, beside the job's log; the worker adds when it has joined.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from pathlib import Path

from headrace.files.layout import LeaseFolder
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
    """Type of the machine."""
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
    """When it told its end."""


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
            found |= _time(name, value)
        elif name in NodeMarks.model_fields:
            found[name] = value
    end = file.with_suffix(_END)
    if end.exists() and not end.read_text("utf-8", "replace").startswith(_NOTICE):
        found["ended_at"] = end.stat().st_mtime
    return NodeMarks.model_validate(found)


def _time(name: str, value: str) -> dict[str, float]:
    try:
        return {name: float(value)}
    except ValueError:
        return {}
