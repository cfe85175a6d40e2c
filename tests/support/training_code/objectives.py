"""Functions that tests name as `train.function`."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from headrace import script


def value(x, fate="well"):
    """Gives `x` squared, as a number of numpy's, or does what is said."""
    script.report(1, loss=x)
    return FATES[fate](x)


def well(x):
    return {"value": np.float32(x) ** 2, "torch": "torch" in sys.modules, "seed": seed()}


def seed():
    return int(os.environ["HEADRACE_SEED"])


def learn(x):
    """Reads its data; killed in the middle, it goes on from what it has saved."""
    found = script.newest()
    if found is None:
        with script.saving("half.txt") as path:
            path.write_text(str(x))
        os.killpg(0, signal.SIGKILL)
    samples = script.dataset("val", fields=["label"])
    return {"value": float(found.read_text()), "samples": len(samples)}


def raises(x):
    script.report(2, loss=0.5)
    raise ValueError(f"no root of {x}")


def leave(x):
    script.report(2, loss=0.5)
    script.pause(2)


def hold(x):
    while True:
        time.sleep(0.1)


FATES = {
    "well": well,
    "learn": learn,
    "read": lambda x: {"value": len(script.dataset("val"))},
    "raise": raises,
    "pause": leave,
    "hold": hold,
    "exit": lambda x: sys.exit(3),
    "text": lambda x: {"value": "high"},
    "nothing": lambda x: None,
    "nan": lambda x: {"value": float("nan"), "other": 1},
    "memory": lambda x: {"value": np.ones(2**30).sum()},
}


def drawn(seconds):
    """Gives a number that depends on the seed only, after so many seconds."""
    time.sleep(seconds)
    return {"value": float(np.random.default_rng(seed()).random())}


def held(x, notes):
    """Waits for a file `go` in the folder of notes, or `go-x`."""
    files = [Path(notes, "go"), Path(notes, f"go-{x:g}")]
    while not any(file.exists() for file in files):
        time.sleep(0.05)
    return {"value": x**2}
