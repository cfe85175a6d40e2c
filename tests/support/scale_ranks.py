"""Ranks that train with one scale key after the other and leave what they saw.

`python -m support.scale_ranks FOLDER [CHECK…]`: two ranks write `FOLDER/rank-<RANK>.pt`, a mapping
of what each function of `CHECKS` gave, and beside them four others `FOLDER/mesh-<RANK>.pt`.
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

from support.scale_models import CHECKS, MESH_CHECKS, WORLD_SIZE

for each in ("gradients", "sharding", "weights"):  # they enter themselves into CHECKS
    importlib.import_module(f"support.scale_{each}")


def main(rank: int, folder: Path, name: str = "rank") -> None:
    """Meet the other ranks, run all checks, leave the findings."""
    checks, world_size = {"rank": (CHECKS, WORLD_SIZE), "mesh": (MESH_CHECKS, 4)}[name]
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    os.environ |= {"TORCHELASTIC_RUN_ID": name, "GROUP_RANK": "0"}
    os.environ |= {"LOCAL_WORLD_SIZE": str(world_size)}
    torch.set_num_threads(1)
    store = FileStore(str(folder / f"meeting-{name}"), world_size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=120)
    )
    only = sys.argv[2:]
    found = {key: run(folder) for key, run in checks.items() if not only or key in only}
    torch.save(found, folder / f"{name}-{rank}.pt")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    # forked, as the ranks of a node are: imports take most of the time
    fork = multiprocessing.get_context("fork")
    told = [(1, place), *((rank, place, "mesh") for rank in range(4))]
    others = [fork.Process(target=main, args=each, daemon=True) for each in told]
    for other in others:
        other.start()
    main(0, place)
    for other in others:
        other.join()
    sys.exit(max(abs(other.exitcode or 0) for other in others))
