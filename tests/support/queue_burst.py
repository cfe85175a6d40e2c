"""Many jobs asked for at once by several processes, with an `sbatch` that loses answers."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess as Process
from pathlib import Path

from headrace.batch.commands import LocalCommands
from headrace.batch.slurm import Slurm
from headrace.batch.submission_gate import SubmissionGate
from headrace.clusters.lease_records import job_name
from headrace.errors import QueueFullError
from headrace.files.atomic import write_text
from headrace.files.layout import LeaseFolder
from headrace.recipe.batch import Batch
from support.factories import job_spec

_NUM_PROCESSES = 4

_FLAKY = """\
#!/bin/bash
# every {lost}th answer is lost after the job was submitted, as one that timed out
exec 9>>"$0.calls"; flock 9; echo >&9; number=$(wc -l <"$0.calls"); exec 9>&-
{sbatch} "$@" >"$0.$number"; code=$?
if ((number % {lost} == 0)); then
  echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
  exit 1
fi
cat "$0.$number"; exit "$code"
"""


def flaky_sbatch(folder: Path, lost: int) -> Path:
    """A folder for the front of `PATH` whose `sbatch` loses every `lost`-th answer."""
    sbatch = shutil.which("sbatch")
    assert sbatch is not None
    folder.mkdir()
    wrapper = folder / "sbatch"
    wrapper.write_text(_FLAKY.format(sbatch=sbatch, lost=lost))
    wrapper.chmod(0o755)
    return folder


@contextmanager
def burst(leases: Path, batch: Batch, bin_folder: Path, num_jobs: int) -> Iterator[list[Process]]:
    """Four processes that ask for jobs, until all of theirs were submitted."""
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_submit_all, args=(leases, batch, bin_folder, first, num_jobs))
        for first in range(_NUM_PROCESSES)
    ]
    for worker in workers:
        worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


def _submit_all(leases: Path, batch: Batch, bin_folder: Path, first: int, num_jobs: int) -> None:
    path = f"{bin_folder}:{os.environ['PATH']}"
    gate = SubmissionGate(Slurm(LocalCommands({"PATH": path}), ""), leases, batch)
    for number in range(first, num_jobs, _NUM_PROCESSES):
        folder = LeaseFolder(leases / f"burst-{number}")
        folder.path.mkdir(parents=True)
        while not _submitted(gate, folder):
            time.sleep(0.05)  # as the control side does, which asks every second


def _submitted(gate: SubmissionGate, folder: LeaseFolder) -> bool:
    work = ("sleep 1", "exit 0")
    job = job_spec(name=job_name(folder), memory_per_node=2**26, prologue=work)
    try:
        gate.submit(job, folder.job)
    except QueueFullError as error:
        write_text(folder.waiting, error.what)
        return False
    return True
