"""Which processes count as a lease's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path

import psutil
import pytest

from headrace.clusters import local
from headrace.clusters.local import mark, marked
from headrace.files.layout import LeaseFolder


@pytest.fixture
def folder(tmp_path: Path) -> LeaseFolder:
    return LeaseFolder(tmp_path / "demo-1")


@pytest.fixture
def process(folder: LeaseFolder) -> Iterator[psutil.Process]:
    """A process of the lease that runs until it is told to end."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=mark(folder)) as child:
        yield psutil.Process(child.pid)


def test_a_process_with_the_mark_is_found(folder: LeaseFolder, process: psutil.Process) -> None:
    assert marked([folder]) == {str(folder.path.resolve()): [process]}


@pytest.mark.parametrize(("told", "is_ended"), [(b"done", False), (b"", True)])
def test_the_guard_ends_what_a_killed_host_leaves(
    folder: LeaseFolder,
    process: psutil.Process,
    told: bytes,
    is_ended: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that ended everything itself has told so."""
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(told)))
    local.main([str(folder.path)])
    assert process.is_running() != is_ended


def test_a_process_that_just_ends_is_not_left_over(
    folder: LeaseFolder, process: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has taken its memory, command line included, and it is no zombie yet."""
    monkeypatch.setattr(psutil.Process, "cmdline", lambda _: [])
    assert marked([folder]) == {str(folder.path.resolve()): []}
