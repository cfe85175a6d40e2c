"""A plain loop over DistributedDataParallel, with headrace's loader and checkpoints.

Arguments: epochs, and `RANK:STEP` at which that rank kills itself, once.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from headrace import script

notes = Path(os.environ["HEADRACE_RUN_FOLDER"])
epochs, (dies, dies_at) = int(sys.argv[1]), map(int, sys.argv[2].split(":"))
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(int(os.environ["HEADRACE_SEED"]))
batches = script.loader("train")
model = DistributedDataParallel(torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
epoch = step = 0
found = script.newest()
if found is not None:
    saved = torch.load(found)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    batches.load_state_dict(saved["batches"])
    epoch, step = saved["epoch"], saved["step"]
while epoch < epochs:
    batches.set_epoch(epoch)
    for batch in batches:
        mark = notes / "died"
        if (rank, step) == (dies, dies_at) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss = torch.nn.functional.cross_entropy(model(batch["array"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        script.report(step, epoch, total_steps=epochs * len(batches), loss=loss)
        with (notes / f"seen-{rank}").open("a") as file:
            file.writelines(f"{step} {sample}\n" for sample in batch["sample_id"].tolist())
        if rank == 0 and step % 3 == 0:
            with script.saving(f"step-{step}.pt") as path:
                state = {"model": model.module.state_dict(), "batches": batches.state_dict()}
                torch.save(
                    {**state, "optimizer": optimizer.state_dict(), "epoch": epoch, "step": step},
                    path,
                )
    epoch += 1
if rank == 0:
    with script.saving("trained.pt") as path:
        torch.save(model.module.state_dict(), path)
dist.destroy_process_group()
