"""Evaluates the checkpoints of a run while it trains, the newest first."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.evaluation.plan import variants_of
from headrace.evaluation.provenance import evaluated_step
from headrace.files.atomic import is_there
from headrace.files.layout import RunFolder
from headrace.files.lines import append_line
from headrace.steps.context import StepContext
from headrace.steps.history import (
    EvaluatedRow,
    History,
    evaluated_file,
    read_evaluated,
    read_history,
)

logger = logging.getLogger(__name__)

_LOOK_S = 1.0

Evaluate = Callable[[int, str], dict[str, Any]]
"""Evaluates a variant of the recipe with a checkpoint, by its path; gives its outputs."""


def watch(context: StepContext, watched: RunFolder, evaluate: Evaluate) -> dict[str, Any]:
    """Evaluate each checkpoint on the recipe's splits until no more come; gives the outputs.

    What this run has evaluated before an interruption is not evaluated again.
    """
    variants = variants_of(context)
    first = variants[0]
    splits = {n: one.split for n, one in enumerate(variants) if one.checkpoint == first.checkpoint}
    while True:
        is_over = is_there(context.run_folder.enough)  # before looking: all that came is seen
        rows = _rows(context, watched)
        done = {(row.step, row.split) for row in rows}
        left = {
            step: path
            for step, path in _checkpoints(watched).items()
            if any((step, split) not in done for split in splits.values())
        }
        context.progress(len({row.step for row in rows}), None, "checkpoints", "evaluated")
        if left:
            step = max(left)
            with _held(context, left[step]) as path:
                for place, split in splits.items():
                    if path is not None and (step, split) not in done:
                        _note(context, watched, step, evaluate(place, str(path)))
        elif is_over:
            return _outputs(rows, first.split)
        else:
            time.sleep(_LOOK_S)


def _rows(context: StepContext, watched: RunFolder) -> list[EvaluatedRow]:
    rows = read_evaluated(watched)
    return [row for row in rows if row.run_id == context.spec.run_id]


def _checkpoints(watched: RunFolder) -> dict[int, Path]:
    """Those that are there, by optimizer steps."""
    paths = sorted(watched.checkpoints.glob("*.ckpt"))
    has_ended = any(path.name == "final.ckpt" for path in paths)
    history = read_history(watched) if has_ended else History(())
    steps = ((evaluated_step(path, history), path) for path in paths)
    return {step: path for step, path in steps if step is not None}


@contextmanager
def _held(context: StepContext, path: Path) -> Iterator[Path | None]:
    """A checkpoint under another name, as training may remove its own; None when it has already."""
    folder = context.run_folder.checkpoints
    shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was killed
    folder.mkdir()
    held = folder / path.name
    try:
        if path.is_dir():
            shutil.copytree(path, held, copy_function=os.link)
        else:
            os.link(path, held)
    except (FileNotFoundError, shutil.Error):
        yield None
    except OSError as error:
        logger.info("%s is used where it lies: %s", path, error)
        yield path
    else:
        yield held
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _note(context: StepContext, watched: RunFolder, step: int, outputs: dict[str, Any]) -> None:
    metrics = outputs["metrics"].items()
    row = EvaluatedRow(
        at=time.time(),
        run_id=context.spec.run_id,
        step=step,
        split=outputs["split"],
        metrics={name: value for name, value in metrics if isinstance(value, float)},
        report=outputs["report"],
    )
    watched.history.mkdir(exist_ok=True)
    append_line(evaluated_file(watched), row.model_dump_json())


def _outputs(rows: list[EvaluatedRow], split: str) -> dict[str, Any]:
    mine = (row for row in rows if row.split == split)
    newest = max(mine, key=lambda row: row.step, default=None)
    return {
        "split": split,
        "metrics": newest.metrics if newest else {},
        "report": newest.report if newest else "",
        "steps": sorted({row.step for row in rows}),
    }
