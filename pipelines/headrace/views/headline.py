"""What a run amounts to in a line: its main metric, how its trials stand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.errors import StepError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder
from headrace.ledger.records import RunRecord
from headrace.record import Record
from headrace.runs.origin import run_metrics
from headrace.states import StepState
from headrace.suites.records import PRUNED, SuiteSummary
from headrace.views.facts import facts_of

_OPEN = (StepState.QUEUED.value, StepState.RUNNING.value)


class Headline(Record):
    """A figure by its name."""

    name: str
    value: float


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


def suite_words(record: RunRecord) -> str:
    """How a suite stands, in a few words; empty for other runs."""
    file = RunFolder(Path(record.folder)).summary
    try:
        summary = read_record(file, SuiteSummary)
    except StepError:  # `headrace suite watch` tells what is wrong
        return f"its {file.name} is damaged"
    if summary is None:
        return ""
    ended = sum(count for state, count in summary.counts.items() if state not in _OPEN)
    useless = ended - sum(summary.counts.get(state, 0) for state in ("succeeded", PRUNED))
    words = [f"{ended:,} of {summary.total:,} trials"]
    words += [f"{useless:,} without success"] if useless else []
    if summary.best is not None and summary.best_value is not None:
        words.append(f"best {summary.best_value:.4g} (#{summary.best})")
    return ", ".join(words)
