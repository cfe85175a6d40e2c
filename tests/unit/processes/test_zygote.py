"""What is forked from a zygote, who shares one, and how long it is kept."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.processes import zygote
from headrace.processes.working_folder import python_module
from headrace.processes.zygote import APART, KEEP_WARM, Fork, fork, zygotes
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


def ordered(*arguments: str, kept: str = "60", **environment: str) -> Fork:
    path = os.pathsep.join(sys.path)
    whole = {**os.environ, "PYTHONPATH": path, KEEP_WARM: kept, **environment}
    return Fork(module=MODULE, arguments=arguments, environment=whole)


def told(output: Path, order: Fork) -> dict[str, str]:
    """What a process that is forked tells of itself, as `support.zygote_code` does."""
    output.unlink(missing_ok=True)
    with open(os.devnull) as nothing, output.open("wb") as written:
        assert fork([MODULE], order, (nothing.fileno(), written.fileno()), wait=True)
    seen = dict(
        line.split("=", 1)
        for line in wait_until(lambda: _ended(output), 30, "what the process tells")
    )
    wait_until(lambda: not psutil.pid_exists(int(seen["pid"])), 30, "its end")
    return seen


def _ended(output: Path) -> list[str]:
    lines = output.read_text().splitlines()
    return lines if "end=" in lines else []


def test_processes_are_forked_from_one_that_imports_once(tmp_path: Path) -> None:
    first, second = (told(tmp_path / "out", ordered("a", word)) for word in "xy")
    assert first["imported_at"] == second["imported_at"]
    assert first["pid"] != second["pid"]
    assert (first["arguments"], second["arguments"]) == ("a x", "a y")
    assert first["session"] == first["pid"]
    assert first["random"] != second["random"]


def test_others_see_its_own_command_and_environment(tmp_path: Path) -> None:
    secret = {"TOKEN": "hush", APART: "TOKEN"}
    seen = told(tmp_path / "out", ordered("show", HEADRACE_LEASE_ID="l-1", WORD="w", **secret))
    assert seen["command"].rstrip() == " ".join(python_module(MODULE, "show"))
    assert (seen["of_kernel.HEADRACE_LEASE_ID"], seen["of_kernel.WORD"]) == ("l-1", "w")
    assert (seen["HEADRACE_LEASE_ID"], seen["WORD"], seen["TOKEN"]) == ("l-1", "w", "hush")
    assert "of_kernel.TOKEN" not in seen
    (parent,) = zygotes()
    assert not {"TOKEN", "HEADRACE_LEASE_ID"} & parent.environ().keys()


@pytest.mark.parametrize("other", ["WORD", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS"])
def test_another_environment_has_a_zygote_of_its_own(tmp_path: Path, other: str) -> None:
    first = told(tmp_path / "out", ordered("tell"))
    second = told(tmp_path / "out", ordered("tell", **{other: os.pathsep.join([*sys.path, "x"])}))
    assert first["imported_at"] != second["imported_at"]
    assert len(zygotes()) == 2


@pytest.mark.parametrize("what", ["folder", "limit", "package"])
def test_other_surroundings_have_a_zygote_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    told(tmp_path / "out", ordered("tell"))
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
    told(tmp_path / "out", ordered("tell"))
    assert len(zygotes()) == 2


def test_a_folder_that_was_made_anew_is_the_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "project"
    for _ in range(2):
        place.mkdir()
        monkeypatch.chdir(place)
        seen = told(tmp_path / "out", ordered("tell"))
        assert seen["folder"] == str(place)
        place.rmdir()
    (parent,) = zygotes()
    assert parent.is_running()


def test_of_one_that_was_killed_nothing_is_left_when_the_next_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(tmp_path / "out", ordered("tell"))
    (killed,) = zygotes()
    monkeypatch.setattr(zygote, "zygotes", lambda: [killed])
    assert zygote.zygote_bytes() > 0
    killed.kill()
    killed.wait(10)
    assert zygote.zygote_bytes() == 0
    told(tmp_path / "out", ordered("tell", WORD="another"))
    assert len(list(zygote.folder().iterdir())) == 3  # a socket, its process, the lock


def test_no_more_are_kept_than_a_few_environments_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those idle for longest end; not one that is at work, or that was asked just now."""
    monkeypatch.setattr(zygote, "_MOST", 2)
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as nothing, (tmp_path / "held").open("wb") as output:
        files = nothing.fileno(), output.fileno(), theirs.fileno()
        assert fork([MODULE], ordered("hold"), files, wait=True)
        told(tmp_path / "out", ordered("tell", WORD="idle"))
        (busy,) = (each for each in zygotes() if "WORD" not in each.environ())
        for age_s, file in enumerate(zygote.folder().glob("*.pid")):
            os.utime(file, (100 + age_s, 100 + age_s))
        told(tmp_path / "out", ordered("tell", WORD="idle"))
        told(tmp_path / "out", ordered("tell", WORD="third"))
        assert len(zygotes()) == 3
        for file in zygote.folder().glob("*.pid"):
            os.utime(file, (100, 100))
        told(tmp_path / "out", ordered("tell", WORD="fourth"))
        words = [each.environ().get("WORD") for each in zygotes()]
        assert sorted(map(str, words)) == ["None", "fourth"]
        assert busy.is_running()
        assert len(list(zygote.folder().iterdir())) == 5


def test_none_is_left_where_it_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""
    started = []
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        monkeypatch.setattr(Path, "write_text", _full)
        return started[-1]

    monkeypatch.setattr(zygote.subprocess, "Popen", start)
    with open(os.devnull) as nothing, (tmp_path / "out").open("wb") as output:
        files = nothing.fileno(), output.fileno()
        assert not fork([MODULE], ordered("tell"), files, wait=True)
    assert started[0].wait(10) == -signal.SIGKILL


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_nothing_is_forked_for_who_has_gone_meanwhile(tmp_path: Path) -> None:
    """As a host that was killed while PyTorch was still being imported."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    with theirs, open(os.devnull) as nothing, (tmp_path / "in_vain").open("wb") as output:
        files = nothing.fileno(), output.fileno(), theirs.fileno()
        assert fork([MODULE], ordered("tell"), files, wait=False)
    told(tmp_path / "out", ordered("tell"))  # requests are answered in turn
    assert (tmp_path / "in_vain").read_bytes() == b""


def test_it_ends_when_it_was_not_needed_for_a_while_and_another_comes(tmp_path: Path) -> None:
    """Not while a process of its own lives; that one outlives its end."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as nothing, (tmp_path / "held").open("wb") as output:
        files = nothing.fileno(), output.fileno(), theirs.fileno()
        assert fork([MODULE], ordered("hold", kept="1"), files, wait=True)
        theirs.close()
        (parent,) = zygotes()
        time.sleep(3)
        assert parent.is_running()
        parent.kill()
        ours.sendall(b"still there?")
        assert ours.recv(100) == b"still there?"
    again = told(tmp_path / "out", ordered("tell", kept="1"))
    assert again["end"] == ""
    wait_until(lambda: not zygotes(), 30, "the zygote to end")
    assert not list(zygote.folder().glob("*.pid"))


def test_none_is_used_without_the_variable_or_room_or_where_others_may_write(
    tmp_path: Path,
) -> None:
    with open(os.devnull) as nothing, (tmp_path / "out").open("wb") as output:
        files = nothing.fileno(), output.fileno()
        assert not fork([MODULE], ordered("tell", kept="0"), files, wait=True)
        assert not fork([MODULE], ordered("tell", HEADRACE_LONG="x" * 9000), files, wait=True)
        zygote.folder().mkdir(mode=0o777)
        zygote.folder().chmod(0o777)
        assert not fork([MODULE], ordered("tell"), files, wait=True)
    assert not zygotes()


def test_what_cannot_be_imported_is_met_by_those_alone_who_need_it(tmp_path: Path) -> None:
    """As where a file of the user's has the name of a package."""
    tried, go, output = (tmp_path / name for name in ("tried", "go", "out"))
    (tmp_path / "broken_package.py").write_text(
        "import os, time\n"
        f"open({str(tried)!r}, 'w').close()\n"
        f"while not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\n"
        "raise RuntimeError\n"
    )
    order = ordered("tell", PYTHONPATH=os.pathsep.join([*sys.path, str(tmp_path)]))
    with open(os.devnull) as nothing, output.open("wb") as written:
        files = nothing.fileno(), written.fileno()
        assert fork([MODULE, "broken_package"], order, files, wait=False)
        wait_until(lambda: tried.exists() and _ended(output), 30, "one that was there before")
        os.truncate(output, 0)
        written.seek(0)
        assert fork([MODULE, "broken_package"], order, files, wait=False)
        go.touch()
        wait_until(lambda: _ended(output), 30, "one that came meanwhile")


def test_one_that_cannot_import_is_told_to_who_waits(tmp_path: Path) -> None:
    order = Fork(module="no.such.module", arguments=(), environment=ordered().environment)
    with open(os.devnull) as nothing, (tmp_path / "out").open("wb") as output:
        files = nothing.fileno(), output.fileno()
        assert not fork([order.module], order, files, wait=True)
