"""Ranks that train with one scale key after the other and leave what they saw.

`python -m support.scale_ranks FOLDER`: writes `FOLDER/rank-<RANK>.pt`, a mapping of what
each function of `CHECKS` gave.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]

from support.scale_models import CHECKS, WORLD_SIZE

for each in ("gradients", "sharding", "weights"):  # they enter themselves into CHECKS
    importlib.import_module(f"support.scale_{each}")


def main(rank: int, folder: Path) -> None:
    """Meet the other rank, run all checks, leave the findings."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE),
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    os.environ |= {"TORCHELASTIC_RUN_ID": "scale", "GROUP_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    store = FileStore(str(folder / "meeting"), WORLD_SIZE)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=WORLD_SIZE, timeout=timedelta(seconds=120)
    )
    only = sys.argv[2:]
    found = {name: run(folder) for name, run in CHECKS.items() if not only or name in only}
    torch.save(found, folder / f"rank-{rank}.pt")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    # forked, as the ranks of a node are: imports take most of the time
    other = multiprocessing.get_context("fork").Process(target=main, args=(1, place), daemon=True)
    other.start()
    main(0, place)
    other.join()
    sys.exit(other.exitcode)
