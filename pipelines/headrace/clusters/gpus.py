"""How many accelerators a node shows, without loading any library for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_TIMEOUT_S = 30.0


def missing_gpus(wanted: int) -> str:
    """What is wrong with the accelerators of this node; empty when nothing is.

    Args:
        wanted: Accelerators that the job asked for.
    """
    if wanted == 0:
        return ""
    given = given_gpus(os.environ)
    if given is not None and given < wanted:
        return f"the job was given {given} of {wanted}"
    if shutil.which("nvidia-smi") is not None:
        return _asked(wanted)
    seen = wanted if given is not None else _devices()
    return "" if seen >= wanted else f"{seen} of {wanted} have a device file"


def given_gpus(environment: Mapping[str, str]) -> int | None:
    """Accelerators that the batch system gave to the job; None when it does not say.

    Args:
        environment: Variables of the job.
    """
    for name in _VARIABLES:
        if name in environment:
            return len([part for part in environment[name].split(",") if part.strip()])
    return None


def _devices() -> int:
    """Accelerators of any make whose device files this job may see."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")) or list(Path("/dev/dri").glob("renderD*")))


def listed_gpus(text: str) -> int:
    """Accelerators in what `nvidia-smi --list-gpus` prints, one a line."""
    return sum(1 for line in text.splitlines() if line.startswith("GPU "))


def _asked(wanted: int) -> str:
    command = ["nvidia-smi", "--list-gpus"]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"nvidia-smi gave no answer within {_TIMEOUT_S:g} s"
    if ended.returncode != 0:
        told = (ended.stdout + ended.stderr).strip().splitlines()
        return f"nvidia-smi ended with code {ended.returncode}: {told[-1] if told else ''}"
    seen = listed_gpus(ended.stdout)
    return "" if seen >= wanted else f"nvidia-smi shows {seen} of {wanted}"
