"""Checkpoint files of a run: names, and the newest undamaged, best and chosen checkpoint."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Literal

from headrace.errors import UnknownNameError
from headrace.files import removal
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
_MOST_INSIDE = 1_000
_WEIGHTS = re.compile(
    r".*\.(?:pt|pth|ckpt|bin|safetensors|gguf|h5|hdf5|keras|weights|joblib|pkl|pickle|np[yz]|onnx"
    r"|msgpack|tflite|pdparams|pb|index|data-\d+-of-\d+|distcp|ocdbt)|\.zarray",
    re.IGNORECASE,
)
"""Files that hold weights, also within folders of Hugging Face, TensorFlow, Orbax and DCP."""

_RECORD = re.compile(
    r"(?:.*_)?(?:results|config|metrics|args|params|tokenizer|vocab|map|tokens)\.json|trainer_state\.json"
    r"|.*\.(?:csv|tsv|log|out|err|jsonl|ya?ml|toml|ini|md|html|jinja|png|jpe?g|svg|pdf|py|lock)"
    r"|.*\.index\.json|(?:vocab|merges|requirements)\.txt|events\.out\.tfevents.*"
    r"|(?:training_args|optimizer|scheduler|scaler|rng_state\w*)\.(?:bin|pth?)",
    re.IGNORECASE,
)
"""Files beside weights."""

_WEIGHTS_NAME = re.compile(r"(?:best|kept)-\d{9,}\.ckpt")


class BestCheckpoint(Figures):
    """The best checkpoint; written when that is complete."""

    file: str
    metric: str
    value: float
    """The metric, the mean over ranks."""
    epoch: int
    """Epoch that it was written in, from 0."""
    step: int


def best_name_of(step: int) -> str:
    """Return the file name of the best checkpoint of a number of optimizer steps."""
    return f"best-{step:09d}.ckpt"


def step_of(path: Path) -> int | None:
    """Return the optimizer steps of a checkpoint; None for other files."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints by step in a folder, newest first."""
    paths = folder.iterdir() if folder.is_dir() else ()
    steps = {path: step for path in paths if (step := step_of(path)) is not None}
    return sorted(steps, key=lambda path: steps[path], reverse=True)


def newest_step(folder: Path) -> int:
    """Return the optimizer steps of the newest checkpoint in a folder; 0 without any."""
    return max((step_of(path) or 0 for path in newest_first(folder)), default=0)


def newest_whole(folder: Path, tell: Callable[..., None] | None = None) -> Path | None:
    """Return the newest undamaged checkpoint; call `tell` with `checkpoint` and `why` of others."""
    for path in newest_first(folder):
        problem = damage(path)
        if problem is None:
            return path
        _pass_over(path, problem, tell)
    return None


def _pass_over(path: Path, problem: str, tell: Callable[..., None] | None) -> None:
    logger.warning("Checkpoint %s is skipped: %s", path, problem)
    if tell is not None:
        tell(checkpoint=str(path), why=problem)


def of_script(folder: Path) -> list[Path]:
    """Return a script's checkpoints, no records: newest weights first, then unknown formats."""
    own = (path for path in folder.iterdir() if path.name[0] != "." and path.name != OUTCOME)
    found = ((_kind(path), path.stat().st_mtime_ns, path) for path in own if path.exists())
    return [path for kind, _, path in sorted(found, reverse=True) if kind]


def _kind(path: Path) -> int:
    """Return 2 for a format that holds weights, 1 for an unknown format, 0 for a record."""
    if path.is_dir():
        inside = islice(path.rglob("*"), _MOST_INSIDE)
        return max((_kind(each) for each in inside if not each.is_dir()), default=0)
    return 0 if _RECORD.fullmatch(path.name) else 1 + bool(_WEIGHTS.fullmatch(path.name))


def newest_of_script(folder: Path, tell: Callable[..., None] | None = None) -> Path | None:
    """Return the newest file from which a script can resume; call `tell` as `newest_whole`.

    Empty files and damaged archives of `torch.save` are skipped; other files cannot be checked.
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
    """Return the progress of the checkpoints in a folder: it grows with each of them.

    It is optimizer steps, or the time of the newest file that a script wrote under a name of its
    own. If headrace saves checkpoints, `own_names` is false: files of callbacks are no progress,
    because training does not resume from them.
    """
    step = newest_step(folder)
    if step or not own_names:
        return float(step)
    try:
        return max((path.stat().st_mtime for path in of_script(folder)), default=0.0)
    except FileNotFoundError:  # the folder does not exist yet, or the script replaces a file
        return 0.0


def damage(path: Path) -> str | None:
    """Return the damage of a checkpoint; None if every byte is as it was written.

    A folder without checksums, of a strategy of Lightning, is not checked: it got its name only
    when it was complete.
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
    """Remove a checkpoint, a file or a folder, if it is there; `remove_partial` removes remains."""
    removal.remove(path, ignore_errors=True)


def best_of(folder: Path) -> BestCheckpoint | None:
    """Return the best checkpoint in a folder; None without any."""
    best = read_record(folder / BEST, BestCheckpoint)
    return best if best is not None and (folder / best.file).exists() else None


def chosen(run: RunFolder, wanted: str = "") -> Path:
    """Return a checkpoint of a run; raise UnknownNameError, which names the existing ones.

    `wanted` is `best` by `trainer.monitor`; `last`, the final one, or the newest undamaged one
    before the end of training; a number of optimizer steps; empty for the best, else the last.
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
