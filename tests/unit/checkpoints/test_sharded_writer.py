"""What a rank tells when its part of a checkpoint finds no room."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from headrace.checkpoints.sharded_writer import save


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def room() -> Iterator[None]:
    """Files may have 20 KB, and the error is one that a full disk would give as well."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("alone", "room")
def test_what_the_system_said_is_told(tmp_path: Path) -> None:
    """PyTorch raises a RuntimeError of its archive, and loses what led to it between the ranks."""
    with pytest.raises(OSError, match="File too large"):
        save({"state_dict": {"w": torch.zeros(100_000)}}, tmp_path / "step.ckpt")
