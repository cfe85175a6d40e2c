"""Which checkpoint of a run is meant: `best`, `last`, or the one after so many optimizer steps."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import UnknownNameError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder, checkpoint_name, kept_name
from headrace.training import checkpoints
from headrace.training.records import BestCheckpoint


def best_of(folder: Path) -> BestCheckpoint | None:
    """The best checkpoint in a folder; None when there is none."""
    best = read_record(folder / checkpoints.BEST, BestCheckpoint)
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
        final = folder / checkpoints.FINAL
        return final if final.exists() else checkpoints.newest_whole(folder)
    if not wanted.isdecimal():
        return None
    whole, kept = (folder / name_of(int(wanted)) for name_of in (checkpoint_name, kept_name))
    return whole if whole.exists() else kept
