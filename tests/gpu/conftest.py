"""Tests of this folder need CUDA: `make gpu-check` runs them, a process for each file."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip(f"PyTorch {torch.__version__} has no CUDA device")
