"""Kinds of steps of other packages, by entry points `headrace.steps`."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import JsonValue

from headrace.entry_points import load_entry, names_in
from headrace.errors import UnknownNameError, nearest
from headrace.record import Record
from headrace.steps.context import StepContext

STEPS = "headrace.steps"
"""Group of the entry points: a `StepKind` object, named as the kind of step."""

StepOptions = dict[str, JsonValue]
"""Options of a run of a kind of step, as JSON."""


class StepKind(Protocol):
    """A kind of step of another package.

    A run of that kind has one step, of the same name, on the role and nodes of `train`. Its module
    is imported wherever such runs are requested or listed, so it must import nothing heavy.
    """

    options: type[Record]
    """Model of the options; the step gets them as its input `options`."""

    def run(self, context: StepContext) -> dict[str, Any]:
        """Do the step; return its outputs."""
        ...

    def words(self, options: StepOptions) -> tuple[str, ...]:
        """Return equivalent options of the command with the kind's name."""
        ...

    def report(self, run_id: str) -> None:
        """Write the report of a successful run."""
        ...


def step_kind(kind: str, built_in: tuple[str, ...] = ()) -> StepKind:
    """Return the kind of step that a package adds.

    Raises:
        UnknownNameError: No package adds it; `built_in` are other valid names.
        UserError: Its package cannot be loaded; kinds of other packages still work.
    """
    added = names_in(STEPS)
    if kind not in added:
        known = nearest(kind, (*built_in, *added))
        raise UnknownNameError(f"There is no step of kind '{kind}'", known)
    found: StepKind = load_entry(STEPS, kind)
    return found
