"""User code of the chaos tests on Slurm: training that waits or idles on request."""

import os
import time
from pathlib import Path

from headrace.examples.digits_model import DigitsClassifier


class PacedDigits(DigitsClassifier):
    """The model of the demo; the number in a file of its folder says what it does at a step.

    `hold`: it waits at that step and after it, and leaves `held-<hold>-<pid>`, by rank 0.
    `pause`: seconds that it sleeps before each step.

    Args:
        folder: Folder of these files.
        learning_rate: As of the demo's model.
    """

    def __init__(self, folder, learning_rate=0.003):
        super().__init__(learning_rate=learning_rate)
        self.folder = Path(folder)

    def on_train_batch_start(self, batch, batch_idx):
        time.sleep(self.told("pause") or 0.0)
        while (hold := self.told("hold")) is not None and self.global_step >= hold:
            if self.global_rank == 0:
                (self.folder / f"held-{hold:g}-{os.getpid()}").touch()
            time.sleep(0.05)

    def told(self, name):
        try:
            return float((self.folder / name).read_text())
        except FileNotFoundError:
            return None
