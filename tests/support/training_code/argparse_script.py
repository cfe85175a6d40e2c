"""A script that knows nothing of headrace: argparse, torchrun's variables, a handler of SIGTERM."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, default=os.environ.get("HEADRACE_DATASET"))
parser.add_argument("--out", type=Path, default=os.environ.get("HEADRACE_CHECKPOINTS"))
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--fails-on", type=int, default=-1)
options = parser.parse_args()
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def leave(number, frame):
    (options.out / f"stopped-{rank}.txt").write_text("saved in time")
    sys.exit(0)


signal.signal(signal.SIGTERM, leave)
(options.out / f"ready-{rank}").touch()
while options.fails_on >= 0:
    others = [options.out / f"ready-{each}" for each in range(world_size)]
    if rank == options.fails_on and all(each.exists() for each in others):
        raise ValueError("this rank alone")
    time.sleep(0.02)
if rank == 0:
    (options.out / "sum.txt").write_text(f"{options.steps} on {len(list(options.data.iterdir()))}")
