"""Checkpoint files of a run: names, which is the newest whole one, the best, and the one meant."""

from __future__ import annotations

import logging
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from headrace.errors import UnknownNameError
from headrace.files.atomic import fsync, read_record
from headrace.files.damage import archive_damage, is_sealed, sealed_damage
from headrace.files.layout import RunFolder, checkpoint_name, kept_name
from headrace.record import Figures

logger = logging.getLogger(__name__)

FINAL = "final.ckpt"
"""Checkpoint of the trained model."""

OUTCOME = "final.json"
"""Written after `final.ckpt`: training is complete."""

BEST = "best.json"
"""Names the checkpoint in which the metric of `trainer.monitor` is best."""

_ARCHIVE = b"PK\x03\x04"

_NAME = re.compile(r"step-(\d{9,})\.ckpt")
_WEIGHTS_NAME = re.compile(r"(?:best|kept)-\d{9,}\.ckpt")


class BestCheckpoint(Figures):
    """Which checkpoint is the best one; written when it is whole."""

    file: str
    metric: str
    value: float
    """The metric, the mean over ranks."""
    epoch: int
    """Epoch that it was written in, from 0."""
    step: int


def best_name_of(step: int) -> str:
    """File name of the checkpoint that was the best one after so many optimizer steps."""
    return f"best-{step:09d}.ckpt"


def step_of(path: Path) -> int | None:
    """Optimizer steps of a checkpoint; None for other files."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def newest_first(folder: Path) -> list[Path]:
    """Checkpoints by step in a folder, newest first."""
    paths = folder.iterdir() if folder.is_dir() else ()
    steps = {path: step for path in paths if (step := step_of(path)) is not None}
    return sorted(steps, key=lambda path: steps[path], reverse=True)


def newest_step(folder: Path) -> int:
    """Optimizer steps of the newest checkpoint by step in a folder; 0 when there is none."""
    return max((step_of(path) or 0 for path in newest_first(folder)), default=0)


def newest_whole(folder: Path, tell: Callable[..., None] | None = None) -> Path | None:
    """The newest checkpoint that can be read; damaged ones are told, `checkpoint` and `why`."""
    for path in newest_first(folder):
        problem = damage(path)
        if problem is None:
            return path
        _pass_over(path, problem, tell)
    return None


def _pass_over(path: Path, problem: str, tell: Callable[..., None] | None) -> None:
    logger.warning("Checkpoint %s is passed over: %s", path, problem)
    if tell is not None:
        tell(checkpoint=str(path), why=problem)


def of_script(folder: Path) -> list[Path]:
    """What a script has left in its folder under names of its own, newest first."""
    own = [
        path for path in folder.iterdir() if not path.name.startswith(".") and path.name != OUTCOME
    ]
    return sorted(own, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def newest_of_script(folder: Path, tell: Callable[..., None] | None = None) -> Path | None:
    """The newest file that a script can go on from; empty ones and torn archives are told as there.

    `torch.save` writes archives; of other files it is not known whether they are whole.
    """
    for path in of_script(folder):
        if path.is_dir():
            return path
        with path.open("rb") as file:
            start = file.read(len(_ARCHIVE))
        problem = damage(path) if start == _ARCHIVE else None if start else "it is empty"
        if problem is None:
            return path
        _pass_over(path, problem, tell)
    return None


def progress_in(folder: Path, *, own_names: bool = True) -> float:
    """How far the checkpoints in a folder have come: more after each of them.

    Optimizer steps; for those that a script wrote under names of its own, when it wrote the newest.
    Where headrace saves them, `own_names` is false: files of callbacks show no progress, as
    training does not go on from them.
    """
    step = newest_step(folder)
    if step or not own_names:
        return float(step)
    try:
        files = [path for path in folder.iterdir() if not path.name.startswith(".")]
        return max((path.stat().st_mtime for path in files), default=0.0)
    except FileNotFoundError:  # there is no folder yet, or the script replaces a file just now
        return 0.0


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint; None when every byte of it is as it was written.

    A folder without a list of checksums (of a strategy of Lightning's) is taken as it is: it got
    its name only when it was whole.
    """
    if not path.is_dir():
        return archive_damage(path)
    return sealed_damage(path) if is_sealed(path) else None


def publish(prepared: Path, final: Path) -> None:
    """Make a written checkpoint durable and give it its name."""
    fsync(prepared)
    if prepared.is_dir():
        remove(final)
    prepared.replace(final)
    fsync(final.parent)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints."""
    for path in newest_first(folder)[keep:]:
        remove(path)


def remove_weights(folder: Path, kind: Literal["best", "kept"], but: Path | None = None) -> None:
    """Remove the weights of a kind, all or all `but` one."""
    for path in folder.glob(f"{kind}-*.ckpt"):
        if _WEIGHTS_NAME.fullmatch(path.name) and path != but:
            remove(path)


def remove_partial(folder: Path) -> None:
    """Remove checkpoints that were never finished; a rank that still writes one fails."""
    for path in folder.glob(".*.partial"):
        remove(path)


def remove(path: Path) -> None:
    """Remove a checkpoint, a file or a folder, if it is there."""
    if path.is_dir():
        # half of one would look whole
        going = path.with_name(f".{path.name.lstrip('.')}.{secrets.token_hex(4)}.partial")
        shutil.rmtree(path.replace(going), ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def best_of(folder: Path) -> BestCheckpoint | None:
    """The best checkpoint in a folder; None when there is none."""
    best = read_record(folder / BEST, BestCheckpoint)
    return best if best is not None and (folder / best.file).exists() else None


def chosen(run: RunFolder, wanted: str = "") -> Path:
    """A checkpoint of a run.

    Args:
        run: Folder of the run.
        wanted: `best` by `trainer.monitor`; `last`, the final one or the newest whole one while
            training is not over; a number of optimizer steps; empty is the best one if there is
            one, else the last.

    Raises:
        UnknownNameError: There is none; names those that are there.
    """
    path = _found(run.checkpoints, wanted)
    if path is not None and path.exists():
        return path
    there = sorted(each.name for each in run.checkpoints.glob("*.ckpt"))
    raise UnknownNameError(
        f"Run {run.run_id} has no checkpoint '{wanted or 'last'}'",
        f"Valid: best (with trainer.monitor), last, or a number of steps. There are: "
        f"{', '.join(there) or 'none'}.",
    )


def _found(folder: Path, wanted: str) -> Path | None:
    if wanted in ("", "best"):
        best = best_of(folder)
        if best is not None or wanted:
            return folder / best.file if best is not None else None
    if wanted in ("", "last"):
        final = folder / FINAL
        return final if final.exists() else newest_whole(folder)
    if not wanted.isdecimal():
        return None
    whole, kept = (folder / name_of(int(wanted)) for name_of in (checkpoint_name, kept_name))
    return whole if whole.exists() else kept
