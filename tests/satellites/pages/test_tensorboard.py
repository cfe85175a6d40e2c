"""TensorBoard of a run: started once, alone on its socket, gone when nobody looks."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.errors import StepError, UserError
from headrace.files.layout import RunFolder
from headrace_pages import tensorboard
from support.waiting import wait_until


@pytest.fixture(autouse=True)
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of sockets with a short name; what listens there ends afterwards."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)
        for child in tensorboard._started.values():
            child.kill()
            child.wait()
        tensorboard._started.clear()


def processes(folder: object) -> list[psutil.Process]:
    """Those that serve sockets below a folder."""
    found = psutil.process_iter(["cmdline"])
    return [
        each
        for each in found
        if "headrace_pages.tensorboard_process" in (each.info["cmdline"] or ())
        and any(str(folder) in word for word in each.info["cmdline"])
    ]


def logged(path: Path) -> RunFolder:
    """A run with an event file, of which nothing was written yet."""
    run = RunFolder(path)
    (run.tensorboard / "tensorboard" / "version_0").mkdir(parents=True)
    (run.tensorboard / "tensorboard" / "version_0" / "events.out.tfevents.1.host").touch()
    return run


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


def answer(place: Path, path: str) -> bytes:
    """What it answers by HTTP."""
    connection = _Connection(str(place))
    connection.request("GET", path)
    got = connection.getresponse()
    assert got.status == 200
    return got.read()


def test_one_process_serves_a_run_on_a_socket_of_this_account(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
):
    run = logged(tmp_path / "run")
    place = tensorboard.serve(run)
    assert tensorboard.serve(run) == place
    (process,) = processes(sockets)
    assert process.net_connections("inet") == []
    assert place.parent.stat().st_mode & 0o777 == 0o700
    plugins = json.loads(answer(place, "/data/plugins_listing"))
    assert "scalars" in plugins
    assert "projector" not in plugins
    assert b"url(/" not in answer(place, "/")  # holds below any path
    monkeypatch.setattr(tensorboard, "MOST", 1)
    with pytest.raises(UserError, match="1 runs are already open in TensorBoard"):
        tensorboard.serve(logged(tmp_path / "other"))
    process.kill()
    process.wait(60)
    assert answer(tensorboard.serve(run), "/data/environment")


@pytest.mark.slow
def test_it_ends_when_nobody_asks_and_with_who_started_it(tmp_path: Path, sockets: Path):
    place = tensorboard.serve(logged(tmp_path / "idle"), kept_s=5)
    wait_until(lambda: not place.exists() and not processes(sockets), 60, "the idle one to end")
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from pathlib import Path; from headrace.files.layout import RunFolder\n"
        "from headrace_pages.tensorboard import serve; serve(RunFolder(Path(sys.argv[2])))"
    )
    folder = logged(tmp_path / "left").path
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, sockets, folder], check=True)
    wait_until(lambda: not processes(sockets), 60, "the one whose starter ended to end")


def test_what_is_missing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match=r"(?s)no event files.*\[csv, tensorboard\]"):
        tensorboard.serve(RunFolder(tmp_path / "run"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "tensorboard.py").write_text("raise ImportError('half installed')")
    with pytest.raises(StepError, match="half installed"):
        tensorboard.serve(logged(tmp_path / "run"))
