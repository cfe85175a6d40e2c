"""A recipe's and a model's own `ModelCheckpoint`s, over launches that end at any time and go on.

Lightning puts their files beside those of the first logger, in another folder each launch, and
trusts that what a resumed state names is there, and nothing else.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

_EARLIER = "earlier"
"""Folder of what was written after the checkpoint that a launch goes on from."""


class OwnCheckpoints(Callback):  # type: ignore[misc]
    """Gives each `ModelCheckpoint` that names no `dirpath` a folder of its own, in all launches.

    Files that a resumed one does not know lie in `earlier` there until training ends: it writes
    them again. The turn of `last` comes after all others: their checkpoints hold the others' state.
    """

    def __init__(self, folder: Path, last: Collection[Callback]) -> None:
        self._folder, self._last = folder, last
        self._housed: list[ModelCheckpoint] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give them their folders, before they look for one."""
        del pl_module, stage
        others = [callback for callback in trainer.callbacks if callback not in self._last]
        trainer.callbacks = [*others, *self._last]
        names: Counter[str] = Counter()
        for callback in trainer.callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                name = type(callback).__name__
                names[name] += 1
                number = f"-{names[name]}" if names[name] > 1 else ""
                callback.dirpath = str(self._folder / f"{name}{number}")
                self._housed.append(callback)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Let their states name files that are there, where the run's folder is now."""
        del pl_module
        states = checkpoint["callbacks"]
        for callback in self._housed:
            state, folder = states.get(callback.state_key), Path(callback.dirpath)
            if state is not None and Path(state["dirpath"]).name == folder.name:
                there = trainer.strategy.broadcast(set(_files(folder)), 0)
                states[callback.state_key] = _adopted(state, callback, there)

    def on_fit_start(self, trainer: Trainer, *_: Any) -> None:
        """Put aside what they do not know; where not all is known, nothing."""
        for callback in self._housed if trainer.is_global_zero else ():
            names_all = callback.monitor is not None or callback.save_top_k in (0, 1)
            if names_all and not callback.save_on_exception:
                _put_aside(callback)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        """Remove what was put aside."""
        for callback in self._housed if trainer.is_global_zero else ():
            shutil.rmtree(Path(callback.dirpath) / _EARLIER, ignore_errors=True)


def _put_aside(callback: ModelCheckpoint) -> None:
    folder = Path(callback.dirpath)
    known = {*callback.best_k_models, callback.best_model_path, callback.last_model_path}
    for name in _files(folder):
        if str(folder / name) not in known:
            aside = folder / _EARLIER / name
            aside.parent.mkdir(parents=True, exist_ok=True)
            if aside.is_dir():
                shutil.rmtree(aside)
            (folder / name).replace(aside)


def _files(folder: Path) -> list[str]:
    """Checkpoints in a folder, relative to it; each may be a folder itself."""
    found = (path.relative_to(folder) for path in folder.rglob("*.ckpt"))
    return [
        str(path)
        for path in found
        if path.parts[0] != _EARLIER and not any(p.suffix == ".ckpt" for p in path.parents)
    ]


def _adopted(
    state: dict[str, Any], callback: ModelCheckpoint, there: Collection[str]
) -> dict[str, Any]:
    """A state with the files that are there, in the callback's folder."""
    home = Path(callback.dirpath)

    def here(path: str) -> str:
        if not path or not Path(path).is_relative_to(state["dirpath"]):
            return ""
        name = str(Path(path).relative_to(state["dirpath"]))
        return str(home / name) if name in there else ""

    models = {here(path): value for path, value in state["best_k_models"].items() if here(path)}
    pick = min if callback.mode == "min" else max
    best = pick(models, key=models.__getitem__) if models else here(state["best_model_path"])
    return state | {
        "dirpath": callback.dirpath,
        "best_k_models": models,
        "best_model_path": best,
        "best_model_score": models.get(best),
        "kth_best_model_path": here(state["kth_best_model_path"]),
        "last_model_path": here(state["last_model_path"]),
    }
