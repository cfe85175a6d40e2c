"""What is forked from a zygote, who shares one, and how long it is kept."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.processes import zygote
from headrace.processes.children import Child, Process, start_program
from headrace.processes.forking import APART
from headrace.processes.working_folder import python_module
from headrace.processes.zygote import KEEP_WARM, fork, zygotes
from support.waiting import wait_until

MODULE = "support.zygote_code"


@pytest.fixture(autouse=True)
def _own(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("z")))
    yield
    for each in zygotes():
        each.kill()


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def ordered(
    log: Path, *arguments: str, kept: str = "60", input: int | None = None, **environment: str
) -> Child:
    path = os.pathsep.join(sys.path)
    whole = {**os.environ, "PYTHONPATH": path, KEEP_WARM: kept, **environment}
    command = python_module(MODULE, *(arguments or ("show",)))
    return Child(name="fork", command=command, log=log, env=whole, input=input)


def told(output: Path, *arguments: str, **environment: str) -> dict[str, str]:
    """What a process that is forked reports of itself, as `support.zygote_code` does."""
    output.unlink(missing_ok=True)
    assert fork([MODULE], ordered(output, *arguments, **environment), wait=True)
    seen = dict(
        line.split("=", 1)
        for line in wait_until(lambda: _ended(output), 30, "what the process tells")
    )
    wait_until(lambda: not psutil.pid_exists(int(seen["pid"])), 30, "its end")
    return seen


def _ended(output: Path) -> list[str]:
    lines = output.read_text().splitlines() if output.exists() else []
    return lines if "end=" in lines else []


def test_processes_are_forked_from_one_that_imports_once(output: Path) -> None:
    first, second = (told(output, "a", word) for word in "xy")
    assert first["imported_at"] == second["imported_at"]
    assert first["pid"] != second["pid"]
    assert (first["arguments"], second["arguments"]) == ("a x", "a y")
    assert first["session"] == first["pid"]
    assert first["random"] != second["random"]


def test_others_see_its_own_command_and_environment(output: Path) -> None:
    secret = {"TOKEN": "hush", APART: "TOKEN"}
    seen = told(output, HEADRACE_LEASE_ID="l-1", WORD="w", **secret)
    assert seen["command"].rstrip() == " ".join(python_module(MODULE, "show"))
    assert (seen["of_kernel.HEADRACE_LEASE_ID"], seen["of_kernel.WORD"]) == ("l-1", "w")
    assert (seen["HEADRACE_LEASE_ID"], seen["WORD"], seen["TOKEN"]) == ("l-1", "w", "hush")
    assert "of_kernel.TOKEN" not in seen
    (parent,) = zygotes()
    assert not {"TOKEN", "HEADRACE_LEASE_ID"} & parent.environ().keys()


@pytest.mark.parametrize("other", ["WORD", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS"])
def test_another_environment_has_a_zygote_of_its_own(output: Path, other: str) -> None:
    first = told(output)
    second = told(output, **{other: os.pathsep.join([*sys.path, "x"])})
    assert first["imported_at"] != second["imported_at"]
    assert len(zygotes()) == 2


@pytest.mark.parametrize("what", ["folder", "limit", "package"])
def test_other_surroundings_have_a_zygote_of_their_own(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    told(output)
    if what == "folder":
        monkeypatch.chdir(tmp_path)
    elif what == "limit":
        before = zygote.resource.getrlimit
        monkeypatch.setattr(
            zygote.resource, "getrlimit", lambda one: (*before(one), "of another shell")
        )
    else:
        (tmp_path / "site").mkdir()
        monkeypatch.setattr(zygote.site, "getusersitepackages", lambda: str(tmp_path / "site"))
    told(output)
    assert len(zygotes()) == 2


def test_a_folder_that_was_made_anew_is_the_one_that_is_there(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "project"
    for _ in range(2):
        place.mkdir()
        monkeypatch.chdir(place)
        assert told(output)["folder"] == str(place)
        place.rmdir()
    (parent,) = zygotes()
    assert parent.is_running()


def test_of_one_that_was_killed_nothing_is_left_when_the_next_comes(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(output)
    (killed,) = zygotes()
    monkeypatch.setattr(zygote, "zygotes", lambda: [killed])
    assert zygote.zygote_bytes() > 0
    killed.kill()
    killed.wait(10)
    assert zygote.zygote_bytes() == 0
    told(output, WORD="another")
    assert len(list(zygote.folder().iterdir())) == 3  # a socket, its process, the lock


def test_no_more_are_kept_than_a_few_environments_need(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those idle for longest end; not one that is at work, or that was asked just now."""
    monkeypatch.setattr(zygote, "_MOST", 2)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert fork([MODULE], ordered(tmp_path / "held", "hold", input=theirs.fileno()), wait=True)
        told(output, WORD="idle")
        (busy,) = (each for each in zygotes() if "WORD" not in each.environ())
        for age_s, file in enumerate(zygote.folder().glob("*.pid")):
            os.utime(file, (100 + age_s, 100 + age_s))
        told(output, WORD="idle")
        told(output, WORD="third")
        assert len(zygotes()) == 3
        for file in zygote.folder().glob("*.pid"):
            os.utime(file, (100, 100))
        told(output, WORD="fourth")
        words = [each.environ().get("WORD") for each in zygotes()]
        assert sorted(map(str, words)) == ["None", "fourth"]
        assert busy.is_running()
        assert len(list(zygote.folder().iterdir())) == 5


def test_none_is_left_where_it_cannot_be_written_down(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""
    started = []

    def start(*arguments: Any) -> Process:
        started.append(start_program(*arguments))
        monkeypatch.setattr(Path, "write_text", _full)
        return started[-1]

    monkeypatch.setattr(zygote, "start_program", start)
    assert not fork([MODULE], ordered(output), wait=True)
    assert started[0].wait(10) == -signal.SIGKILL


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_is_forked_for_who_has_gone_meanwhile(tmp_path: Path, output: Path) -> None:
    """As a host that was killed while PyTorch was still being imported."""
    go, in_vain = tmp_path / "go", tmp_path / "in_vain"
    surroundings = {"PYTHONPATH": _with_slow_package(tmp_path, go)}
    modules = ["slow_package", MODULE]
    asked = fork(modules, ordered(in_vain, **surroundings), wait=False)
    assert asked is not None
    del asked
    go.touch()
    assert fork(modules, ordered(output, **surroundings), wait=True)  # answered in turn
    wait_until(lambda: _ended(output), 30, "the one that is waited for")
    assert not in_vain.exists()


def _with_slow_package(folder: Path, go: Path, then: str = "") -> str:
    """Return a module path with a package whose import waits for a file, and leaves `tried`."""
    (folder / "slow_package.py").write_text(
        "import os, time\n"
        f"open({str(folder / 'tried')!r}, 'w').close()\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n{then}"
    )
    return os.pathsep.join([*sys.path, str(folder)])


def test_it_ends_when_it_was_not_needed_for_a_while_and_another_comes(
    tmp_path: Path, output: Path
) -> None:
    """Not while a process of its own lives; that one outlives its end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        held = ordered(tmp_path / "held", "hold", kept="1", input=theirs.fileno())
        assert fork([MODULE], held, wait=True)
        theirs.close()
        (parent,) = zygotes()
        time.sleep(3)
        assert parent.is_running()
        parent.kill()
        ours.sendall(b"still there?")
        assert ours.recv(100) == b"still there?"
    again = told(output, kept="1")
    assert again["end"] == ""
    wait_until(lambda: not zygotes(), 30, "the zygote to end")
    assert not list(zygote.folder().glob("*.pid"))


def test_none_is_used_without_the_variable_or_room_or_where_others_may_write(output: Path) -> None:
    assert not fork([MODULE], ordered(output, kept="0"), wait=True)
    assert not fork([MODULE], ordered(output, HEADRACE_LONG="x" * 9000), wait=True)
    zygote.folder().mkdir(mode=0o777)
    zygote.folder().chmod(0o777)
    assert not fork([MODULE], ordered(output), wait=True)
    assert not zygotes()


def test_what_cannot_be_imported_is_met_by_those_alone_who_need_it(
    tmp_path: Path, output: Path
) -> None:
    """As where a file of the user's has the name of a package."""
    tried, go, later = (tmp_path / name for name in ("tried", "go", "later"))
    path = _with_slow_package(tmp_path, go, "raise RuntimeError\n")
    modules = [MODULE, "slow_package"]
    first = fork(modules, ordered(output, PYTHONPATH=path), wait=False)
    wait_until(lambda: tried.exists() and _ended(output), 30, "one that was there before")
    second = fork(modules, ordered(later, PYTHONPATH=path), wait=False)
    go.touch()
    wait_until(lambda: _ended(later), 30, "one that came meanwhile")
    assert first is not None
    assert second is not None
    wait_until(lambda: (first.poll(), second.poll()) == (0, 0), 30, "their ends")


def test_a_module_that_cannot_be_imported_is_reported_to_who_waits(output: Path) -> None:
    assert not fork(["no.such.module"], ordered(output), wait=True)
