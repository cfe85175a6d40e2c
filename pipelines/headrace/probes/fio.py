"""fio, where it is installed: its command, and what its JSON says."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any, Literal

from headrace.errors import StepError

Kind = Literal["write", "read", "randread"]

_TIMEOUT_S = 600
_RANDOM_S = 3
"""Longest time of one measurement of random reads."""


def is_there() -> bool:
    """Whether fio is on the path."""
    return shutil.which("fio") is not None


def command(kind: Kind, folder: str, num_bytes: int, clients: int, *, direct: bool) -> list[str]:
    """The command that writes or reads files of so many bytes, one for each client.

    Source: https://fio.readthedocs.io/en/latest/fio_doc.html
    """
    of_kind = {
        "write": ("--bs=1M", "--end_fsync=1"),
        "read": ("--bs=1M",),
        "randread": ("--bs=4k", f"--runtime={_RANDOM_S}", f"--io_size={min(num_bytes, 2**26)}"),
    }[kind]
    return [
        *("fio", f"--name={kind}", f"--rw={kind}", f"--directory={folder}"),
        *("--filename_format=client-$jobnum", f"--size={num_bytes}", f"--numjobs={clients}"),
        *(f"--direct={int(direct)}", "--ioengine=psync", "--fallocate=none", "--thread"),
        *("--group_reporting", "--output-format=json", *of_kind),
    ]


def rate_of(output: str, kind: Kind) -> float:
    """Bytes a second, of random reads operations a second, of what fio printed.

    Raises:
        StepError: It is not what fio prints, or tells of an error.
    """
    try:
        (job,) = json.loads(output[output.index("{") :])["jobs"]
        error: int = job["error"]
        told: dict[str, Any] = job["write" if kind == "write" else "read"]
        rate = float(told["iops"] if kind == "randread" else told["bw_bytes"])
    except (ValueError, KeyError, TypeError) as wrong:
        raise StepError(f"fio's output cannot be read: {output[:300]!r}") from wrong
    if error:
        raise StepError(f"fio failed with error {error}")
    return rate


def run(kind: Kind, folder: str, num_bytes: int, clients: int, *, direct: bool) -> float:
    """What `rate_of` gives of one run.

    Raises:
        StepError: fio failed.
    """
    words = command(kind, folder, num_bytes, clients, direct=direct)
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if ended.returncode:
        raise StepError(f"fio ended with code {ended.returncode}: {ended.stderr.strip()[-500:]}")
    return rate_of(ended.stdout, kind)
