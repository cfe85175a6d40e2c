"""TensorBoard for runs with event files: one process a run, started at the first view."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from filelock import FileLock

from headrace.errors import StepError, UserError
from headrace.files.layout import RunFolder
from headrace.files.private import make_private
from headrace.processes.working_folder import python_module
from headrace.status.run_page import has_events

MOST = 4
"""Processes at once, on one machine."""

_START_TIMEOUT_S = 60.0
_POLL_S = 0.05
_LONGEST_LINE = 500

_started: dict[Path, subprocess.Popen[bytes]] = {}
"""Children of this process, so that ended ones can be removed."""


def serve(run: RunFolder, kept_s: float = 900.0) -> Path:
    """Start a TensorBoard for a run, unless it runs.

    It ends `kept_s` seconds after the last request, and with the process that started it.

    Returns:
        The Unix socket on which it answers HTTP; only this account can use it.

    Raises:
        UserError: There is nothing to show, or too many run already.
        StepError: It does not start.
    """
    if not has_events(run):
        raise UserError(
            f"Run {run.run_id} has no event files",
            "TensorBoard reads the files of `trainer.loggers: [csv, tensorboard]` in the recipe.",
        )
    # not below headrace's home: names of sockets are short
    folder = Path(tempfile.gettempdir()) / f"headrace-tensorboard-{os.getuid()}"
    make_private(folder)
    place = folder / f"{hashlib.sha256(bytes(run.path)).hexdigest()[:16]}.sock"
    if _answers(place):
        return place
    with FileLock(folder / "start.lock", mode=0o600):
        if not _answers(place):
            _check_room(folder)
            _start(run, place, kept_s)
    return place


def _check_room(folder: Path) -> None:
    if sum(map(_answers, folder.glob("*.sock"))) >= MOST:
        raise UserError(
            f"{MOST} runs are already open in TensorBoard",
            "One ends a quarter of an hour after its last view.",
        )


def _start(run: RunFolder, place: Path, kept_s: float) -> None:
    place.unlink(missing_ok=True)  # a killed process leaves it
    if (before := _started.pop(place, None)) is not None:
        before.kill()
        before.wait()
    log = place.with_suffix(".log")
    module = "headrace_pages.tensorboard_process"
    with log.open("wb") as file:
        process = subprocess.Popen(
            python_module(module, str(run.tensorboard), str(place), str(kept_s)),
            stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    _started[place] = process
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not _answers(place):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = log.read_text(errors="replace").strip()[-_LONGEST_LINE:]
            raise StepError(f"TensorBoard does not start: {said}", f"See {log}.")
        time.sleep(_POLL_S)


def _answers(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(place)) == 0
