"""Processes: their identity, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from headrace.processes.identity import ProcessIdentity, end_processes
from support.waiting import wait_until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a name that looks like the fields behind it, until its input ends."""
    code = (
        "import pathlib, sys; pathlib.Path('/proc/self/comm').write_bytes(b'a) Z 1 (\\xe9');"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield process


def test_a_process_lives_until_it_has_ended_though_nobody_waited_for_it(
    child: subprocess.Popen[bytes],
) -> None:
    identity = ProcessIdentity.of(child.pid)
    assert identity.is_here
    assert identity.is_alive
    child.stdin.close()
    wait_until(lambda: not identity.is_alive, 90, "the process to end")
    assert psutil.pid_exists(child.pid)
    child.wait()
    assert not identity.is_alive


def test_a_recycled_pid_is_another_process() -> None:
    me = ProcessIdentity.of()
    assert not me.model_copy(update={"started_s": me.started_s - 0.01}).is_alive


def test_a_process_is_known_again_when_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil takes the start of the machine from the time of day, in whole seconds."""
    me = ProcessIdentity.of()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 0.0)
    assert psutil.Process().create_time() < 1e9
    assert me.is_alive
    assert ProcessIdentity.of() == me


def test_there_is_no_identity_of_a_process_that_has_gone(child: subprocess.Popen[bytes]) -> None:
    child.communicate()
    with pytest.raises(ProcessLookupError, match=f"no process {child.pid}"):
        ProcessIdentity.of(child.pid)


def test_a_process_of_somebody_else_keeps_no_other_from_being_ended(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the starter of a container that runs as root."""
    send_signal = psutil.Process.send_signal

    def send(process: psutil.Process, sig: signal.Signals) -> None:
        if process.pid == os.getpid():
            raise psutil.AccessDenied(process.pid)
        send_signal(process, sig)

    monkeypatch.setattr(psutil.Process, "send_signal", send)
    identity = ProcessIdentity.of(child.pid)
    end_processes([psutil.Process(), psutil.Process(child.pid)], grace_s=0.1)
    assert not identity.is_alive


ENTRY_POINT = """
import subprocess, sys
from headrace.processes.identity import tell_children
if sys.argv[1:] == ["tells"]:
    tell_children()
child = "from headrace.processes.identity import die_with_parent; die_with_parent()"
sys.exit(subprocess.run([sys.executable, "-c", child], stderr=subprocess.DEVNULL).returncode)
"""


@pytest.mark.parametrize(("arguments", "code"), [(["tells"], 0), ([], 1)])
def test_process_1_is_a_parent_only_when_it_says_so(arguments: list[str], code: int) -> None:
    """In a container headrace may be the entry point; elsewhere process 1 is who takes orphans."""
    alone = ["unshare", "--pid", "--fork", "--kill-child"]
    if os.getuid() != 0 or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("a process number 1 of its own takes root")
    done = subprocess.run([*alone, sys.executable, "-c", ENTRY_POINT, *arguments])
    assert done.returncode == code
