"""User code of the tests against Airflow: training that stops and waits at a step, on request."""

import fcntl
import hashlib
import os
import time
from pathlib import Path

from headrace.examples.digits_model import DigitsClassifier


class HeldDigits(DigitsClassifier):
    """The model of the demo; it waits as long as a file `hold` lies in its folder.

    Training raises when another attempt trains at the same time: the kernel gives a lock to one
    process, and takes it back only when that process has ended.

    Args:
        folder: Folder of `hold`, and of what the model leaves there: `held-<pid>`
            appears when rank 0 waits, `attempts` gets a line from it: process, first step;
            `tracker` holds a digest of the environment variable TRACKER_KEY,
            `modules` what an environment module has set.
        hold_at: Optimizer steps after which it waits.
        learning_rate: As of the demo's model.
    """

    def __init__(self, folder, hold_at=12, learning_rate=0.003):
        super().__init__(learning_rate=learning_rate)
        self.folder = Path(folder)
        self.hold_at = hold_at

    def on_train_start(self):
        if self.global_rank != 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self.only_one = (self.folder / "lock").open("a")
        fcntl.flock(self.only_one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        key = os.environ.get("TRACKER_KEY", "")
        (self.folder / "tracker").write_text(hashlib.sha256(key.encode()).hexdigest())
        names = ("HELD_MODULE", "PATH", "LD_LIBRARY_PATH")
        (self.folder / "modules").write_text("\n".join(os.environ.get(each, "") for each in names))
        with (self.folder / "attempts").open("a") as attempts:
            attempts.write(f"{os.getpid()} {self.global_step}\n")

    def on_train_batch_start(self, batch, batch_idx):
        while self.global_step >= self.hold_at and (self.folder / "hold").exists():
            if self.global_rank == 0:
                (self.folder / f"held-{os.getpid()}").touch()
            time.sleep(0.05)
