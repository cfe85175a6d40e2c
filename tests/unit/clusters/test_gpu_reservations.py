"""GPUs of a machine without a queue are claimed in turns, and a claim ends with its process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.clusters.gpu_reservations import FOLDER, GpuReservation, ReservationFile, granted
from headrace.errors import LeaseError, StepCancelledError
from headrace.files.layout import StepFolder
from support.waiting import wait_until

BOX = ("0", "1", "2", "3")
NOBODY = 65534


def claim(
    user: str, since: float = 0, count: int = 1, held: str = "", usable: str = ""
) -> GpuReservation:
    names = tuple(usable) or BOX
    return GpuReservation(
        user=user, work=user, since=since, count=count, usable=names, held=tuple(held.split())
    )


@pytest.mark.parametrize(
    ("mine", "others", "found"),
    [
        (claim("ann"), [], "0"),
        (claim("ann", usable="2013"), [claim("bob", held="2")], "0"),
        (claim("ann"), [claim("bob", held="0 1"), claim("cy", held="2 3")], ""),
        (claim("ann", 2), [claim("ann", 1), claim("bob", held="0 1")], "3"),
        (claim("ann", 2), [claim("ann", 1), claim("bob", held="0 1 2")], ""),
        # who holds less comes first, however late
        (claim("ann", 1), [claim("ann", held="0 1 2"), claim("bob", 9)], ""),
        (claim("bob", 9), [claim("ann", held="0 1 2"), claim("ann", 1)], "3"),
        # what a large claim could use is kept for it, but nothing else
        (claim("ann", 2), [claim("bob", 1, count=4), claim("cy", held="0")], ""),
        (claim("ann", 2), [claim("bob", 1, count=2, usable="01"), claim("cy", held="0")], "2"),
    ],
)
def test_gpus_go_to_who_holds_least_and_has_waited_longest(
    mine: GpuReservation, others: list[GpuReservation], found: str
) -> None:
    assert granted(mine, others) == tuple(found.split())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4), st.integers(1, 4)), max_size=9),
    st.data(),
)
def test_nothing_is_given_twice_and_all_come_to_their_turn(
    wanted: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    waiting = [
        claim(user, since, min(count, width), usable="".join(BOX[:width]))
        for since, (user, count, width) in enumerate(wanted)
    ]
    held: list[GpuReservation] = []
    while waiting:
        before = len(waiting)
        for mine in data.draw(st.permutations(waiting)):
            others = [each for each in (*held, *waiting) if each is not mine]
            if found := granted(mine, others):
                waiting.remove(mine)
                held.append(mine.model_copy(update={"held": found}))
        taken = [gpu for each in held for gpu in each.held]
        assert len(taken) == len(set(taken))
        assert len(waiting) < before or held
        if held:
            held.pop(data.draw(st.integers(0, len(held) - 1)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path / "claims"))
    return tmp_path / "claims"


@pytest.fixture
def step(tmp_path: Path) -> StepFolder:
    (tmp_path / "step").mkdir()
    return StepFolder(tmp_path / "step")


PROGRAM = """
import os, sys, time
from headrace.clusters.gpu_reservations import ReservationFile
os.setuid(int(sys.argv[1]))
with ReservationFile("run-1", ("0",), 1) as claim:
    while not claim.take():
        time.sleep(0.05)
    print("held", flush=True)
    sys.stdin.read()
"""
Holder = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def holder() -> Iterator[Holder]:
    """Starts a process that claims GPU 0 and says when it has it."""
    started: list[subprocess.Popen[str]] = []

    def start(uid: int = os.getuid(), name: str = "ann") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(uid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LOGNAME": name},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def has_it(process: subprocess.Popen[str]) -> bool:
    return process.stdout is not None and process.stdout.readline() == "held\n"


def test_a_claim_ends_with_the_kill_of_its_process(
    holder: Holder, folder: Path, step: StepFolder
) -> None:
    process = holder()
    assert has_it(process)
    with ReservationFile("run-2", ("0",), 1) as mine:
        assert not mine.take()
        assert mine.words().endswith("holds 1")
        process.kill()
        process.wait()
        assert mine.wait(step, lambda: True) == ("0",)
        assert [path.name for path in folder.glob("*.json")] == [mine._path.name]
    assert list(folder.glob("*.json")) == []


def test_who_waits_tells_for_what_until_nobody_wants_it(holder: Holder, step: StepFolder) -> None:
    assert has_it(holder())
    seen = []

    def keep_on() -> bool:
        seen.append(step.waits.read_text())
        return False

    with ReservationFile("run-2", ("0",), 3) as mine, pytest.raises(StepCancelledError):
        mine.wait(step, keep_on)
    assert "waits for 1 GPU of " in seen[0]
    assert not step.waits.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")
def test_users_take_turns(
    holder: Holder, step: StepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TemporaryDirectory() as open_to_all:
        Path(open_to_all).chmod(0o777)
        monkeypatch.setenv(FOLDER, f"{open_to_all}/claims")
        other = holder(NOBODY, "nobody")
        wait_until(lambda: has_it(other), 30, "the other user to have it")
        with ReservationFile("run-2", ("0",), 1) as mine:
            assert mine.words().endswith("nobody holds 1")
            other.communicate("")
            assert mine.wait(step, lambda: True) == ("0",)
            late = holder(NOBODY, "nobody")
            wait_until(lambda: "1 other waits" in mine.words(), 30, "the other user to wait")
        assert has_it(late)


def test_a_folder_that_is_none_is_told(folder: Path) -> None:
    folder.symlink_to("/")
    with pytest.raises(LeaseError, match=rf"{folder} must be a folder.*\n.*{FOLDER}"):
        ReservationFile("run", ("0",), 1).__enter__()


def test_what_holds_no_claim_counts_for_nothing(folder: Path) -> None:
    with ReservationFile("run", ("0",), 1) as mine:
        os.mkfifo(folder / "pipe.json")
        (folder / "link.json").symlink_to("/etc/passwd")
        (folder / "torn.json").write_text("{")
        assert mine.take()
