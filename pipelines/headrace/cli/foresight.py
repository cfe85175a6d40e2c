"""What a run was expected to take, and when it will end, for people."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.cli.console import duration
from headrace.runs.foresight import Ahead


def ends(ahead: Ahead | None) -> str:
    """When a run will end; empty where nothing tells."""
    if ahead is None or ahead.eta_s is None:
        return ""
    return f" · ends in {duration(ahead.eta_s)} ± {duration(ahead.eta_half_s)}"


def predicted(ahead: Ahead | None, took_s: float) -> Iterator[tuple[str, str]]:
    """What it was expected to take and took, under a title; nothing where nobody said."""
    if ahead is not None and ahead.predicted_s is not None:
        expected = f"{duration(ahead.predicted_s)} ± {duration(ahead.predicted_half_s)}"
        yield "predicted", f"{expected}, took {duration(took_s)}"
