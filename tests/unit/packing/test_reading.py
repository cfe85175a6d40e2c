"""Which file was read as a library ended the process, or did not return."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import DataError
from headrace.packing.reading import limited, noting, reading
from headrace.steps.mailbox import fault_of

READS = """
import ctypes, os, signal, sys, threading
from pathlib import Path
from headrace.packing import reading as module
from headrace.packing.reading import limited, noting, reading

def wait():
    threading.Event().wait(1)

with noting(Path(sys.argv[1])):
    reading("/raw/a rather long name.parquet")
    reading("/raw/b.parquet")
    exec(sys.argv[2])
"""


def ended(note: Path, code: str) -> int:
    """Exit code of a process that runs code while it reads `/raw/b.parquet`."""
    command = [sys.executable, "-c", READS, str(note), code]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False, timeout=60).returncode


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("ctypes.string_at(0)", "SIGSEGV", "ended the process (SIGSEGV: Segmentation fault)"),
        ("os.abort()", "SIGABRT", "ended the process (SIGABRT: Aborted)"),
        (
            "module._MOST_S = 0.5\nwith limited():\n while True: pass",
            "SIGXCPU",
            "(SIGXCPU: CPU time limit exceeded)",
        ),
    ],
)
def test_a_fault_names_the_file(tmp_path: Path, code: str, name: str, words: str) -> None:
    note = tmp_path / "reading"
    number = ended(note, code)
    assert number == -signal.Signals[name]
    fault = fault_of(note, number)
    assert isinstance(fault, DataError)
    assert fault.what.startswith("'/raw/b.parquet' is damaged, or what reads it has a fault")
    assert words in fault.what
    assert "leave it out" in fault.hint


@pytest.mark.parametrize(
    "code",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGUSR1)",
        "reading(''); os.abort()",
        "os._exit(3)",
        "threading.Thread(target=lambda: reading('x')).start(); reading(''); os.abort()",
    ],
)
def test_other_ends_name_no_file(tmp_path: Path, code: str) -> None:
    note = tmp_path / "reading"
    assert fault_of(note, ended(note, code)) is None


def test_nothing_is_left_of_what_ends_well(tmp_path: Path) -> None:
    note = tmp_path / "reading"
    assert ended(note, "with limited(): wait()") == 0
    assert not note.exists()
    assert ended(note, "raise KeyError") == 1
    assert not note.exists()
    assert fault_of(note, -signal.SIGABRT) is None


def test_waiting_is_not_computing(tmp_path: Path) -> None:
    """A disk that stands still for longer than the limit is no fault of a file."""
    assert (
        ended(tmp_path / "reading", "module._MOST_S = 0.5\nwith limited():\n wait(), wait()") == 0
    )


def test_a_read_of_many_bytes_has_longer(tmp_path: Path) -> None:
    work = " t = time.thread_time()\n while time.thread_time() < t + 1.5: pass"
    code = f"import time\nmodule._MOST_S = 0.1\nwith limited(100_000_000):\n{work}"
    assert ended(tmp_path / "reading", code) == 0


def test_a_note_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    note = tmp_path / "gone" / "reading"
    assert ended(note, "reading('x')") == 0
    assert fault_of(note, ended(note, "os.abort()")) is None


def test_without_a_place_nothing_is_noted() -> None:
    reading("x")
    with limited():
        assert os.getpid()


def test_one_note_inside_another(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "inner"
    with noting(outer):
        reading("a")
        with noting(inner):
            reading("b")
        reading("c")
        assert outer.read_bytes().startswith(b"c\0")
