"""What a run amounts to: its main metric."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.ledger.rows import RunRecord
from headrace.record import Record
from headrace.runs.origin import run_metrics
from headrace.views.facts import facts_of


class Headline(Record):
    """A figure by its name."""

    name: str
    value: float
    std: float | None = None
    """Standard deviation, where it is the mean of the folds of a cross-validation."""


def headline(record: RunRecord) -> Headline | None:
    """What training monitors, else evaluation's first metric by name, else the loss.

    None for a run that gave none of these, as one that only packs.
    """
    outputs = {
        step: each if isinstance(each, dict) else {} for step, each in record.outputs.items()
    }
    evaluated = run_metrics({"evaluate": outputs.get("evaluate", {})})
    return main_of(run_metrics(outputs), facts_of(record).monitor, next(iter(evaluated), None))


def main_of(metrics: Mapping[str, float], *names: str | None) -> Headline | None:
    """The first of some figures that is there, then the loss of validation, of training."""
    for name in (*names, "val_loss", "loss"):
        if name is not None and name in metrics:
            return Headline(name=name, value=metrics[name])
    return None
