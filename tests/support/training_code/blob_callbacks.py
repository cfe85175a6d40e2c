"""Callbacks whose states are more than plain values, or end the rank that writes them."""

import collections
import datetime
import os
import signal
from pathlib import Path

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateFinder


class KeepsADate(Callback):
    def state_dict(self):
        return {"day": datetime.date(2020, 1, 1)}

    def load_state_dict(self, state_dict):
        assert state_dict["day"].year == 2020


class DiesWhileWriting(Callback):
    """Kills the rank that writes the third checkpoint, half way; `notes` is a folder."""

    def __init__(self, notes):
        self.notes = Path(notes)

    def state_dict(self):
        return {"end": _End(self.notes)}


class TellingFinder(LearningRateFinder):
    """Tells how many rates were tried, the first and the last; `notes` is a file."""

    def __init__(self, notes, **options):
        super().__init__(**options)
        self.notes = Path(notes)

    def on_fit_start(self, trainer, pl_module):
        super().on_fit_start(trainer, pl_module)
        rates = self.optimal_lr.results["lr"]
        if trainer.is_global_zero:
            with self.notes.open("a") as file:
                file.write(f"{len(rates)} {rates[0]} {rates[-1]}\n")


class _End:
    def __init__(self, notes):
        self.notes = notes

    def __reduce__(self):
        number = len(list(self.notes.glob("written-*")))
        (self.notes / f"written-{number}").touch()
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return collections.OrderedDict, ()
