"""A script written for torchrun: its own data, DDP, a snapshot that it goes on from.

It knows nothing of headrace. `--dies-in` is an epoch in which the last rank kills itself, once.
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TEXT = "the quick brown fox jumps over the lazy dog. " * 20


class Letters(Dataset):
    """Each letter, and the one that follows."""

    def __init__(self, text):
        self.letters = sorted(set(text))
        number = {letter: index for index, letter in enumerate(self.letters)}
        self.numbers = torch.tensor([number[letter] for letter in text])

    def __len__(self):
        return len(self.numbers) - 1

    def __getitem__(self, index):
        return self.numbers[index], self.numbers[index + 1]


class Trainer:
    def __init__(self, data, options):
        self.options, self.first = options, 0
        self.sampler = DistributedSampler(data, seed=3)
        self.loader = DataLoader(data, batch_size=32, sampler=self.sampler)
        net = nn.Sequential(nn.Embedding(len(data.letters), 16), nn.Linear(16, len(data.letters)))
        if options.snapshot.exists():
            saved = torch.load(options.snapshot)
            net.load_state_dict(saved["model"])
            self.first = saved["epochs"]
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def train(self):
        for epoch in range(self.first, self.options.epochs):
            self.sampler.set_epoch(epoch)
            for letters, targets in self.loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(letters), targets)
                loss.backward()
                self.optimizer.step()
            self.end(epoch, loss)

    def end(self, epoch, loss):
        died = self.options.snapshot.with_name("died")
        is_last = dist.get_rank() == dist.get_world_size() - 1
        if epoch == self.options.dies_in and is_last and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} from {self.first}: loss {loss.item():.3f}")
            torch.save(
                {"model": self.model.module.state_dict(), "epochs": epoch + 1},
                self.options.snapshot,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--snapshot", type=Path, default="snapshot.pt")
    parser.add_argument("--dies-in", type=int, default=-1)
    options = parser.parse_args()
    if "HEADRACE_DATASET" in os.environ:
        raise ValueError("there is no dataset to name")
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    Trainer(Letters(TEXT), options).train()
    dist.destroy_process_group()
