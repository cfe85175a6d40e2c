"""A detached run in a real terminal of tmux: it survives that, and a reboot."""

from __future__ import annotations

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
from headrace.ledger.rows import RunRecord
from headrace.runs.owners import owner_process
from support.bad_input import HEADRACE, Place, make_place, words
from support.terminal import INTERRUPT, Ended, typed
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

_LONG_S = 240.0
_HELD = 2


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = make_place(tmp_path / "home")
    yield place
    place.wait_for_quiet()


def test_a_detached_run_survives_its_terminal_and_a_reboot(place: Place, tmp_path: Path) -> None:
    """The end of tmux ends nothing, Ctrl-C ends the view; after a reboot one command resumes."""
    if shutil.which("tmux") is None:
        pytest.skip("install the Debian package tmux")
    tmux = ["tmux", "-f", os.devnull, "-S", str(tmp_path / "tmux")]
    begin = f"{HEADRACE} run blobs --site here model.holds=[{_HELD}] --detach >{place.home}/id"
    subprocess.run(
        [*tmux, "new-session", "-d", f"{begin}; exec sleep 600"],
        env=place.environment(),
        check=True,
    )
    ledger = Ledger.open(f"sqlite:///{place.home}/ledger.db")
    wait_held(ledger)
    (run,) = ledger.runs()
    assert (place.home / "id").read_text() == f"{run.run_id}\n"
    log = RunFolder(Path(run.folder)).log
    screen = subprocess.run([*tmux, "capture-pane", "-pJ"], check=True, capture_output=True)
    words(screen.stdout.decode(), f"headrace attach {run.run_id}", f"log: {log}")
    subprocess.run([*tmux, "kill-server"], check=True)

    left = attached(place, run.run_id, INTERRUPT)
    assert left.exit_code == 130
    words(left.output, "Ctrl-C ends only this view", "The run continues", "headrace cancel")
    driver = owner_process(run.owner)
    assert driver is not None
    assert driver.is_alive
    kill_as_a_reboot(ledger, run)
    view = attached(place, run.run_id)
    assert view.exit_code == 1
    words(view.output, "Abandoned", "Resume it")
    shown = place.shown("status").stdout
    words(shown, f"headrace resume {run.run_id} --detach", "headrace resume --abandoned")

    (place.home / f"go-{_HELD}").touch()
    resume = [str(HEADRACE), "resume", "--abandoned"]
    resumed = subprocess.run(resume, env=place.environment(), capture_output=True, check=True)
    assert resumed.stdout.decode() == f"{run.run_id}\n"
    ended = attached(place)
    assert ended.exit_code == 0
    words(ended.output, "train", "succeeded", "checkpoint")
    words(log.read_text(), "train: succeeded")


def wait_held(ledger: Ledger) -> None:
    def trains() -> bool:
        rows = [row for run in ledger.runs() for row in ledger.attempts(run.run_id)]
        return any(row.step == "train" and row.state.value == "running" for row in rows)

    wait_until(trains, _LONG_S, "training to begin")


def attached(place: Place, run_id: str = "", key: str = "") -> Ended:
    """Attach on a terminal; press a key at the first line."""
    keys = [("Ctrl-C ends", key)] if key else []
    with mock.patch.dict(os.environ, place.environment(), clear=True):
        return typed([str(HEADRACE), "attach", *([run_id] if run_id else [])], keys, _LONG_S)


def kill_as_a_reboot(ledger: Ledger, run: RunRecord) -> None:
    """Kill the driver and the leases of a run."""
    driver = owner_process(run.owner)
    assert driver is not None
    os.kill(driver.pid, signal.SIGKILL)
    for lease in ledger.leases(run_id=run.run_id):
        host = read_record(LeaseFolder(Path(lease.folder)).host, HostRecord)
        if host is not None and host.process.is_alive:
            found = psutil.Process(host.process.pid)
            for each in [*found.children(recursive=True), found]:
                each.kill()
    wait_until(lambda: not driver.is_alive, _LONG_S, "the driver to end")
