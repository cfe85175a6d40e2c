"""A run on the small Slurm whose training waits at chosen steps, to be disturbed there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from headrace.batch.queue_state import JobRecord
from headrace.clusters.lease_records import HostRecord
from headrace.clusters.local import marked
from headrace.execution.execute import execute
from headrace.files.atomic import read_record, write_text
from headrace.files.layout import LeaseFolder
from headrace.ledger.rows import AttemptRecord
from headrace.runs.runs import Run
from support.disturbed import Records, kill
from support.factories import built_in, write_recipe, write_site
from support.rank_processes import SERVER, is_rank, worker_of
from support.runs import make_run

Waiting = Iterator[None]
"""What a test does while a run goes on: a generator that is asked again a few times a second."""


class PacedRun:
    """One run of recipe `paced`.

    Args:
        home: Home of headrace, and the site's folder; the model looks into `pace` of it.
        site: Name of the site.
        overrides: Changes to the recipe.
    """

    def __init__(self, home: Path, site: str, *overrides: str) -> None:
        self._pace = home / "pace"
        self.records = Records(home)
        for file in self._pace.iterdir():
            file.unlink()
        self.run = make_run(recipe="paced", site=site, overrides=overrides)
        self._rank = 0

    def go(self, disturb: Waiting) -> None:
        """Run to the end, and disturb meanwhile.

        Args:
            disturb: Disturbs; it must be through before the run is.
        """
        run_disturbed(self.run, disturb)

    def tell(self, name: str, value: float | None) -> None:
        """Tell the model a number; None takes it back."""
        if value is None:
            (self._pace / name).unlink(missing_ok=True)
        else:
            write_text(self._pace / name, str(value))

    def held_at(self, step: int) -> Waiting:
        """Let training go on until a step, and wait until ranks are held there."""
        self.tell("hold", step)
        yield from until(lambda: self._held(step))
        self._rank = self._held(step)[-1]

    def begun_anew(self) -> Waiting:
        """Wait until the ranks that were held last have gone; until then they stay held."""
        yield from until(lambda: is_gone(self._rank))

    def _held(self, step: int) -> list[int]:
        return [int(file.name.split("-")[2]) for file in self._pace.glob(f"held-{step}-*")]

    def lease(self) -> LeaseFolder:
        """The lease that trains."""
        latest = self.records.ledger.latest_lease(f"{self.run.run_id}/gpu")
        return self.run.lease_folder(latest.lease_id)

    def job(self) -> str:
        """Id of the job that trains."""
        record = read_record(self.lease().job, JobRecord)
        return record.job_id

    def has_lease(self) -> bool:
        """Whether a lease that trains was asked for."""
        return self.records.ledger.latest_lease(f"{self.run.run_id}/gpu") is not None

    def host(self) -> psutil.Process:
        """The host of the lease."""
        host = read_record(self.lease().host, HostRecord)
        return psutil.Process(host.process.pid)

    def kill_host(self) -> None:
        """Kill -9 the host of the lease."""
        kill(self.host())

    def kill_rank(self) -> None:
        """Kill -9 one of the ranks."""
        kill(self._ranks()[0])

    def kill_worker(self) -> None:
        """Kill -9 the Dask worker of one of the ranks."""
        worker = worker_of(self._ranks()[0])
        assert worker is not None
        kill(worker)

    def kill_one(self, what: str) -> None:
        """Kill -9 the first process of the lease with this in its command line."""
        kill(self.processes(what)[0])

    def _ranks(self) -> list[psutil.Process]:
        return [each for each in self.processes(SERVER) if is_rank(each)]

    def processes(self, what: str) -> list[psutil.Process]:
        """Processes of the lease, by a part of their command line."""
        folder = self.lease()
        found = marked([folder])[str(folder.path.resolve())]
        return [each for each in found if what in " ".join(_command(each))]

    def attempts(self) -> list[AttemptRecord]:
        """Attempts at training."""
        return self.records.attempts(self.run.run_id, "train")

    def weights(self) -> str:
        """Hash of the weights in the end."""
        return str(self.attempts()[-1].outputs["weights_xxh3"])


def run_disturbed(run: Run, disturb: Waiting) -> None:
    """Run to the end, and disturb meanwhile; that must be through before the run is."""
    left = [disturb]

    def tick() -> None:
        if left and next(disturb, run) is run:
            left.clear()

    failed = execute(run, tick)
    assert failed is None, failed
    assert not left, "the run ended before all disturbances were done"


def until(condition: Callable[[], object]) -> Waiting:
    """Wait for a condition while the run goes on."""
    while not condition():
        yield


def is_gone(pid: int) -> bool:
    """Whether a process has ended, though nobody may have asked how."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def home_for_paced_runs(home: Path, digits: Path, code: Path) -> None:
    """Write recipe `paced`, and site `quick` of two ranks on two nodes."""
    (home / "pace").mkdir(parents=True)
    write_recipe(
        home, "paced", dataset={"source": str(digits)}, code=[str(code)], pack_role="gpu",
        trainer={"max_epochs": 4, "checkpoint_every_steps": 5}, evaluate=None,
        model={"_target_": "paced_digits.PacedDigits", "folder": str(home / "pace")},
    )  # fmt: skip
    site = built_in("sites", "slurm-dev")
    for role in site["roles"].values():
        role["batch"] |= {"poll": 0.5, "memory_per_node": "4GiB"}
        role["batch"].pop("config", None)
    site["roles"]["gpu"]["ranks_per_node"] = 1
    site["roles"]["gpu"]["batch"]["prologue"] = [_glutton(home / "pace" / "eat")]
    site["limits"] |= {"lost_after": 30}
    allowed = {"allowed_code": [str(code)], "allowed_sources": ["/"]}
    changed = {"roles": site["roles"], "limits": site["limits"], "folder": str(home)}
    write_site(home, "quick", like="slurm-dev", **changed, **allowed)


def _glutton(file: Path) -> str:
    """Shell code that takes as many MiB of the job as a file says, once it is there.

    Slurm polls only for processes that it finds, and Dask's names of workers hide what is below.
    """
    eat = f'{sys.executable} -c \'import sys, time; x = b"x" * (int(sys.argv[1]) << 20); '
    wait = f"until mv {file} {file}.$$ 2> /dev/null; do kill -0 $$ || exit; sleep 0.3; done"
    return f"( {wait}; exec {eat}time.sleep(600)' $(cat {file}.$$) ) &"
