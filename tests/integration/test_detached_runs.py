"""`--detach`, `attach` and `resume --abandoned`, in real terminals of tmux."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import psutil
import pytest

from headrace.clusters.lease_records import HostRecord
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.ledger.ledger import Ledger
from headrace.runs.owners import owner_process
from support.bad_input import HEADRACE, USAGE, Place, make_place, words
from support.small_disk import fill, small_disk
from support.terminal import INTERRUPT, Ended, typed
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

_LONG_S = 240.0
_INTERRUPTED, _HELD = 130, 2
_HOLDS = f"model.holds=[{_HELD}]"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = make_place(tmp_path / "home")
    yield place
    place.wait_for_quiet()


def ledger(place: Place) -> Ledger:
    return Ledger.open(f"sqlite:///{place.home}/ledger.db")


def weights(place: Place, run_id: str) -> object:
    outputs = ledger(place).run(run_id).outputs
    return outputs["train"]["weights_xxh3"]


def wait_held(place: Place, count: int) -> None:
    def training() -> bool:
        rows = [row for run in ledger(place).runs() for row in ledger(place).attempts(run.run_id)]
        return sum(row.step == "train" and row.state.value == "running" for row in rows) == count

    wait_until(training, _LONG_S, "training to begin")


def attached(place: Place, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(HEADRACE), "attach", *arguments],
        env=place.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def interrupted(place: Place, *arguments: str) -> Ended:
    with mock.patch.dict(os.environ, place.environment(), clear=True):
        return typed([str(HEADRACE), "attach", *arguments], [("Ctrl-C ends", INTERRUPT)], _LONG_S)


def go(place: Place) -> None:
    (place.home / f"go-{_HELD}").touch()


def test_the_end_of_tmux_ends_no_run(place: Place, tmp_path: Path) -> None:
    """Detached or not; two terminals attach at once; Ctrl-C there leaves the run alone."""
    if shutil.which("tmux") is None:
        pytest.skip("install the Debian package tmux")
    tmux = ["tmux", "-f", os.devnull, "-S", str(tmp_path / "tmux")]
    begin = f"{HEADRACE} run blobs --site here {_HOLDS}"
    place.headrace("ledger", "--help")
    subprocess.run(
        [*tmux, "new-session", "-d", f"{begin} --detach >{place.home}/id; exec sleep 600"],
        env=place.environment(),
        check=True,
    )
    wait_held(place, 1)
    (detached,) = ledger(place).runs()
    assert (place.home / "id").read_text() == f"{detached.run_id}\n"
    shown = subprocess.run(
        [*tmux, "capture-pane", "-pJ"], check=True, capture_output=True, text=True
    )
    folder = RunFolder(Path(detached.folder))
    words(shown.stdout, f"headrace attach {detached.run_id}", f"log: {folder.log}")
    subprocess.run([*tmux, "new-window", begin], check=True)
    wait_held(place, 2)
    subprocess.run([*tmux, "kill-server"], check=True)

    other = next(row for row in ledger(place).runs() if row.run_id != detached.run_id)
    for run in (detached, other):
        driver = owner_process(run.owner)
        assert driver is not None
        assert driver.is_alive
    assert os.getsid(owner_process(detached.owner).pid) == owner_process(detached.owner).pid
    left = interrupted(place, detached.run_id)
    assert left.exit_code == _INTERRUPTED
    words(left.output, "Ctrl-C ends only this view", "The run continues", "headrace cancel")
    views = [attached(place, detached.run_id), attached(place, detached.run_id, "--json")]
    views.append(attached(place))  # the newest open run
    first = views[1].stdout.readline()  # before the end
    go(place)
    table, lines, newest = [view.communicate(timeout=_LONG_S)[0] for view in views]
    assert [view.returncode for view in views] == [0, 0, 0]
    words(table, "train: succeeded", f"{folder.path}")
    states = [json.loads(line)["state"] for line in (first + lines).splitlines()]
    assert (states[0], states[-1]) == ("running", "succeeded")
    words(newest, other.run_id)
    words(folder.log.read_text(), "train: succeeded")
    place.wait_for_quiet()
    assert weights(place, detached.run_id) == weights(place, other.run_id)
    again = attached(place, detached.run_id)
    words(again.communicate(timeout=_LONG_S)[0], "succeeded", "checkpoint")
    assert again.returncode == 0


def test_after_a_reboot_one_command_resumes_all(place: Place) -> None:
    ids = [
        place_detached(place, "run", "blobs", _HOLDS),
        place_detached(place, "sweep", "blobs", _HOLDS, "seed=1,2"),
    ]
    wait_until(lambda: len(ledger(place).leases()) == 2, _LONG_S, "leases")
    wait_held(place, 1)
    for run_id in ids:
        kill_all_of(place, run_id)
    told = place.shown("status").stdout
    words(told, f"headrace resume {ids[0]} --detach", "headrace resume --abandoned")
    view = attached(place, ids[1])
    words(view.communicate(timeout=_LONG_S)[0], "Abandoned", f"headrace resume {ids[1]} --detach")
    assert view.returncode == 1
    go(place)
    resumed = subprocess.run(
        [str(HEADRACE), "resume", "--abandoned"],
        env=place.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(resumed.stdout.splitlines()) == sorted(ids)
    for run_id in ids:
        view = attached(place, run_id)
        shown = view.communicate(timeout=_LONG_S)[0]
        assert view.returncode == 0, shown
    words(shown, "2 succeeded")
    assert place.headrace("resume", "--abandoned").stderr.startswith("No run of yours")


def place_detached(place: Place, command: str, *arguments: str) -> str:
    """Start a detached run; return its id, which alone is on standard output."""
    done = subprocess.run(
        [str(HEADRACE), command, *arguments, "--site", "here", "--detach"],
        env=place.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    (run_id,) = done.stdout.splitlines()
    return run_id


def kill_all_of(place: Place, run_id: str) -> None:
    """Kill the driver and the leases of a run, as a reboot does."""
    driver = owner_process(ledger(place).run(run_id).owner)
    assert driver is not None
    os.kill(driver.pid, signal.SIGKILL)
    for lease in ledger(place).leases(run_id=run_id):
        host = read_record(LeaseFolder(Path(lease.folder)).host, HostRecord)
        if host is not None and host.process.is_alive:
            found = psutil.Process(host.process.pid)
            for each in [*found.children(recursive=True), found]:
                each.kill()
    wait_until(lambda: not driver.is_alive, _LONG_S, "the driver to end")


def test_refusals_are_those_without_detach(place: Place) -> None:
    for arguments in (
        ("run", "blobs", "trainer.max_epoch=3"),
        ("run", "absent"),
        ("sweep", "blobs"),
        ("resume", "absent"),
        ("evaluate", "absent"),
    ):
        plain, detached = (place.headrace(*arguments, *more) for more in ((), ("--detach",)))
        assert detached.returncode == plain.returncode == USAGE
        assert (detached.stdout, detached.stderr) == ("", plain.stderr)
    assert not place.has_run()


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, fault: str) -> None:
    place = make_place(tmp_path / "home")
    with small_disk(tmp_path / "site", "256k") as folder:
        place.write_site(folder=str(folder))
        if fault == "full":
            fill(folder)
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        done = place.run("blobs", "--detach")
    assert done.returncode == USAGE
    assert done.stdout == ""
    words(done.stderr, "error:", str(folder))
    assert "Traceback" not in done.stderr
