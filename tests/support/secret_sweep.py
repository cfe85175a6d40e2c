"""Where a secret lies: in files, in what Slurm tells of its jobs, in command lines."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import psutil

from headrace.files.layout import LeaseFolder
from support.slurm_dev import DevSlurm


def digest_of(secret: str) -> str:
    """What `HeldDigits` writes of the secret that it was given."""
    return hashlib.sha256(secret.encode()).hexdigest()


def files_with(secret: str, *folders: Path) -> list[Path]:
    """Regular files below folders that hold it."""
    return [each for each in _files(folders) if secret.encode() in _content(each)]


def check_only_in(secret: str, lease: LeaseFolder, *folders: Path) -> None:
    """Fail unless the one file of the lease that holds it is its owner's, and no process shows it.

    Files of other leases that live may hold it as well.
    """
    found = files_with(secret, *folders)
    assert lease.secrets in found
    assert {each.name for each in found} == {lease.secrets.name}, found
    assert {stat.S_IMODE(each.stat().st_mode) for each in found} == {0o600}
    shown = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])]
    assert [words for words in shown if secret in " ".join(words or ())] == []


def told_by(slurm: DevSlurm, job_id: str) -> str:
    """All that Slurm tells of a job, with its script."""
    asked = (("show", "job", "-dd", job_id), ("write", "batch_script", job_id, "-"))
    return "".join(slurm.run("scontrol", *words) for words in asked)


def _files(folders: Iterable[Path]) -> Iterable[Path]:
    for folder in folders:
        for above, _, names in os.walk(folder):
            yield from (Path(above, name) for name in names)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes() if stat.S_ISREG(file.lstat().st_mode) else b""
    except FileNotFoundError:  # gone meanwhile
        return b""
