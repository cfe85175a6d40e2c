"""The one figure by which a run is told in a list, whatever its task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from headrace.errors import StepError
from headrace.files.atomic import read_bytes, read_record
from headrace.files.layout import RunFolder
from headrace.ledger.records import RunRecord
from headrace.runs.origin import run_metrics
from headrace.states import StepState
from headrace.suites.records import PRUNED, SuiteSummary

_OPEN = (StepState.QUEUED.value, StepState.RUNNING.value)


class Headline(NamedTuple):
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
    known = run_metrics(outputs)
    evaluated = run_metrics({"evaluate": outputs.get("evaluate", {})})
    for name in (_monitored(record), next(iter(evaluated), None), "val_loss", "loss"):
        if name is not None and name in known:
            return Headline(name, known[name])
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


def _monitored(record: RunRecord) -> str | None:
    """`trainer.monitor` of its recipe; None also where the recipe is gone or damaged."""
    try:
        content = json.loads(read_bytes(RunFolder(Path(record.folder)).recipe) or b"{}")
    except ValueError:  # the list shows the run nonetheless
        return None
    trainer = content.get("trainer") if isinstance(content, dict) else None
    name = trainer.get("monitor") if isinstance(trainer, dict) else None
    return name if isinstance(name, str) else None
