"""The lock of a dataset that is packed: waited for, given up, freed by death."""

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import StepCancelledError, StepError, StorageError
from headrace.files.locks import exclusive_while

HOLD = """
import sys, time
from pathlib import Path
from headrace.files.locks import exclusive_while
with exclusive_while(Path(sys.argv[1]), lambda: None):
    print("held", flush=True)
    time.sleep(60)
"""


def test_wait_ends_when_the_holder_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        checks: list[int] = []

        def kill_then_go_on() -> None:
            checks.append(1)
            holder.kill()

        with exclusive_while(lock, kill_then_go_on) as waited:
            assert waited
            assert checks


def test_wait_can_be_given_up(tmp_path: Path) -> None:
    lock = tmp_path / "lock"

    def cancel() -> None:
        raise StepCancelledError("enough")

    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(StepCancelledError), exclusive_while(lock, cancel):
            pytest.fail("entered")
        holder.kill()
    with exclusive_while(lock, cancel) as waited:
        assert not waited


def test_a_place_that_cannot_hold_a_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError, match=f"^File exists: '{tmp_path}/file'"),
        exclusive_while(tmp_path / "file" / "lock", lambda: None),
    ):
        pytest.fail("entered")


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch) -> None:
    def no_flock(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    with (
        pytest.raises(StepError, match="cannot be locked") as caught,
        exclusive_while(tmp_path / "lock", lambda: None),
    ):
        pytest.fail("entered")
    assert "a file system with locks" in caught.value.hint
