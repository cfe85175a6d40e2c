"""Kinds of steps that other packages add, by entry points `headrace.steps`."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import JsonValue

from headrace.entry_points import load_entry, names_in
from headrace.errors import UnknownNameError, nearest
from headrace.record import Record
from headrace.steps.context import StepContext

STEPS = "headrace.steps"
"""Group of the entry points: an object of a `StepKind`, named as the kind of step."""

StepOptions = dict[str, JsonValue]
"""What a run of such a kind is given: the kind's options as JSON."""


class StepKind(Protocol):
    """A kind of step that another package adds.

    A run of that kind has one step, of the same name, on the role and nodes of `train`. Its module
    is imported wherever such runs are asked for or listed, so that it imports nothing heavy.
    """

    options: type[Record]
    """Model of what a run of the kind is given, the step as its input `options`."""

    def run(self, context: StepContext) -> dict[str, Any]:
        """Do the step; gives its outputs."""

    def words(self, options: StepOptions) -> tuple[str, ...]:
        """Options of the command of the kind's name that ask for the same."""

    def report(self, run_id: str) -> None:
        """Write the report of a run that has succeeded."""


def step_kind(kind: str, built_in: tuple[str, ...] = ()) -> StepKind:
    """The kind of step that a package adds.

    Raises:
        UnknownNameError: No package does; `built_in` are other names that are known.
        UserError: Its package cannot be loaded; other packages' kinds are as good as before.
    """
    added = names_in(STEPS)
    if kind not in added:
        known = nearest(kind, (*built_in, *added))
        raise UnknownNameError(f"There is no step of kind '{kind}'", known)
    found: StepKind = load_entry(STEPS, kind)
    return found
