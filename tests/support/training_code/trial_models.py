"""User code of the tests of trials: a model that learns, or does what the others must survive."""

import json
import os
import resource
import signal

import torch
from blob_models import BlobModel


class TrialModel(BlobModel):
    """Does `fate` in step 3, and notes what part of the node it has.

    Args:
        notes: Folder for notes.
        rate: Learning rate.
        fate: `learn`, `kill_group`, `eat_memory`, `open_files`, or `hold` until `go-3` is there.
    """

    def __init__(self, notes, rate=0.1, fate="learn"):
        super().__init__(notes, holds=(3,) if fate == "hold" else ())
        self.rate, self.fate = rate, fate
        names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS")
        part = {name: os.environ.get(name) for name in names}
        part["cpus"] = sorted(os.sched_getaffinity(0))
        (self.notes / f"part-{rate}.json").write_text(json.dumps(part))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)

    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.log("nothing", float("nan"))

    def misbehave(self, step):
        super().misbehave(step)
        if step != 3:
            return
        mark = self.notes / "killed"
        if self.fate == "kill_group" and not mark.exists():
            mark.touch()
            os.killpg(0, signal.SIGKILL)
        if self.fate == "eat_memory":
            self.eaten = [torch.ones(2**24) for _ in range(48)]  # 3 GiB
        if self.fate == "open_files":
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 5_000), limits[1]))
            self.opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(6_000)]
