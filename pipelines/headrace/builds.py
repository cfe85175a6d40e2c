"""Extensions that a model compiles when it runs: built once for each type of node."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from filelock import FileLock

_HARDWARE = (
    "model name", "flags", "Features", "CPU implementer", "CPU part", "cpu\t", "revision", "Model:",
)  # fmt: skip
"""Begin of lines that are equal on nodes of one type: x86, ARM, POWER, and GPUs of NVIDIA."""


def build_environment() -> dict[str, str]:
    """Return the folders of builds for this type of node, by variables that are not set yet."""
    folder = builds_folder() / node_type()
    folders = {"TORCH_EXTENSIONS_DIR": folder / "torch", "NUMBA_CACHE_DIR": folder / "numba"}
    return {name: str(each) for name, each in folders.items() if name not in os.environ}


def builds_folder() -> Path:
    """Return the folder of builds, with a folder for each type of node."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "headrace" / "builds"


def node_type(proc: Path = Path("/proc")) -> str:
    """Return a name of what builds depend on: hardware, Python, PyTorch, libc, compilers."""
    files = (proc / "cpuinfo", *proc.glob("driver/nvidia/gpus/*/information"))
    lines = {line for file in files for line in file.read_text().splitlines()}
    hardware = sorted(line for line in lines if line.startswith(_HARDWARE))
    torch = [each.version for each in metadata.distributions(name="torch")]
    programs = [shutil.which(each) for each in (os.environ.get("CXX", "c++"), "nvcc")]
    compilers = [os.path.realpath(each) for each in programs if each]
    facts = (hardware, sys.prefix, sys.version, torch, platform.libc_ver(), compilers)
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=6).hexdigest()
    return f"{platform.machine()}-{digest}"


@contextmanager
def one_build() -> Iterator[None]:
    """Build or load extensions; other processes on nodes of this type wait meanwhile.

    The lock ends with its process. The file by which PyTorch locks a build outlives a killed one,
    and all later builds would wait for it: it is removed.
    """
    os.environ.update(build_environment())
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".headrace-lock"):
        for left in folder.glob("*/lock"):
            left.unlink()
        yield
