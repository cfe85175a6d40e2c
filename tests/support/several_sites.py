"""Sites for one suite over several: this machine, two Slurms, and EC2's simulator.

Each has a folder and prices of its own, and says how long a step of `steady` takes there.
"""

from __future__ import annotations

import operator
import statistics
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from pydantic import JsonValue

from headrace.clusters.local import marked
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.files.lines import whole_lines
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import RunRecord
from headrace.runs.parts import part_key
from headrace.states import DRIVER_ROLE, StepState
from headrace.steps.mailbox import StepResult
from headrace.suites.records import ENTRY, Added, Ended, Entry, Started
from support.bad_input import HEADRACE
from support.disturbed import kill
from support.ec2_sim import Ec2Sim
from support.factories import write_recipe, write_site
from support.rank_processes import process_name
from support.slurm_dev import DevSlurm
from support.training import CODE
from support.waiting import wait_until

LONG_S = 240.0

SLOTS = 2
"""Trials at once on each site."""

NUM_STEPS = 5
"""Steps of a trial."""


def write_steady(home: Path, digits: Path, **changes: Any) -> None:
    """Write recipe `steady`: the digits for five steps, in a trial on a node."""
    usual: dict[str, Any] = {
        "code": [str(CODE)],
        "dataset": {"source": str(digits)},
        "data": {"global_batch_size": 256},
        "model": {"_target_": "steady_digits.SteadyDigits"},
        "trainer": {"max_epochs": 1, "checkpoint_every_steps": 2,
                    "monitor": "val/accuracy", "monitor_mode": "max"},
        "evaluate": None,
        "suite": {"trials_per_node": 1},
    }  # fmt: skip
    write_recipe(home, "steady", **{**usual, **changes})


def write_local(home: Path, name: str, step_s: float = 0.0, **changes: Any) -> None:
    """Write a site of this machine, with two nodes."""
    _write(home, name, {"backend": "local"}, step_s, folder=home / name, **changes)


def write_slurm(
    home: Path, name: str, slurm: DevSlurm, step_s: float, folder: Path, **changes: Any
) -> None:
    """Write a site of two nodes of a Slurm, where a GPU-hour has a price that no bill has."""
    batch = {"config": str(slurm.config), "interface": "lo", "poll": 0.5}
    role = {"backend": "slurm", "lifetime": 900, "batch": batch, **changes}
    _write(home, name, role, step_s, folder=folder)


def write_ec2(home: Path, name: str, sim: Ec2Sim, step_s: float, **changes: Any) -> None:
    """Write a site of two spot instances."""
    ec2 = {**sim.values(), "markets": ["spot"], "prices": {"m5.large": {"spot": 0.6}}}
    role = {
        "backend": "ec2", "lifetime": 900, "batch": {"interface": "lo", "poll": 0.5},
        "ec2": ec2, **changes,
    }  # fmt: skip
    _write(home, name, role, step_s, folder=home / name)


def _write(
    home: Path, name: str, role: dict[str, Any], step_s: float, *, folder: Path, **changes: Any
) -> None:
    gpu = {"kind": "pool", "nodes": SLOTS, "threads_per_rank": 1, **role}
    roles = {
        "cpu": {"backend": "local", "kind": "pool", "nodes": 1},
        "gpu": gpu | {"env": {"STEP_S": str(step_s)}},
    }
    write_site(
        home, name, folder=str(folder), roles=roles,
        tiers=[{"name": "disk", "folder": str(folder / "tier"), "reserve": 0}],
        limits={"max_leases": 4, "heartbeat": 1, "lost_after": 12},
        allowed_code=[str(CODE)], allowed_sources=["/"], **changes,
    )  # fmt: skip


class SitesSuite:
    """A suite of recipe `steady`, started detached by the command.

    Args:
        home: Home of headrace.
        num_trials: Seeds from 0.
        words: More words of the command: `--site a,b`, changes to the recipe.
    """

    def __init__(self, home: Path, num_trials: int, *words: str) -> None:
        command = [str(HEADRACE), "sweep", "steady", f"seed=range(0,{num_trials})", "--detach"]
        done = subprocess.run(
            [*command, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.run_id = done.stdout.strip()
        self.ledger = Ledger.open(f"sqlite:///{home}/ledger.db")
        self.run = RunFolder(Path(self.ledger.run(self.run_id).folder))
        self.num_trials = num_trials

    def entries(self) -> list[Entry]:
        """All entries of its journal."""
        return [ENTRY.validate_json(line) for line in whole_lines(self.run.journal, 0)[0]]

    def ends(self) -> list[Ended]:
        """Final ends of its trials."""
        return [each for each in self.entries() if isinstance(each, Ended) and each.is_final]

    def wait_for_ends(self, number: int, site: str = "") -> None:
        """Wait until so many trials have ended, at a site or at any."""

        def reached() -> bool:
            assert not self.has_ended, self.story()
            ends = [each for each in self.ends() if site in ("", each.site)]
            return len(ends) >= number

        wait_until(reached, LONG_S, f"{number} trials to end {site}", poll_s=0.2)

    def wait_for_start(self, site: str) -> None:
        """Wait until a trial runs at a site."""

        def runs() -> bool:
            assert not self.has_ended, self.story()
            running: dict[int, str] = {}
            for each in self.entries():
                if isinstance(each, Started):
                    running[each.number] = each.site
                elif isinstance(each, Ended):
                    running.pop(each.number, None)
            return site in running.values()

        wait_until(runs, LONG_S, f"a trial at {site}", poll_s=0.2)

    @property
    def has_ended(self) -> bool:
        """Whether its run has ended, well or not."""
        return self.ledger.run(self.run_id).state.is_final

    def wait_for_success(self) -> None:
        """Wait until it has succeeded."""
        wait_until(lambda: self.has_ended, LONG_S, "the suite to end", poll_s=0.3)
        assert self.ledger.run(self.run_id).state is StepState.SUCCEEDED, self.story()

    def part(self, site: str) -> RunRecord:
        """The part at a site."""
        found = self.ledger.run_by_key(part_key(self.run_id, site))
        assert found is not None
        return found

    def kill_driver(self) -> None:
        """Kill -9 its driver, once it runs."""

        def drivers() -> list[psutil.Process]:
            leases = self.ledger.leases(run_id=self.run_id)
            folders = [LeaseFolder(Path(x.folder)) for x in leases if x.role == DRIVER_ROLE]
            found = chain.from_iterable(marked(folders).values())
            return [each for each in found if process_name(each).startswith("driver")]

        for each in wait_until(drivers, LONG_S, "the driver", poll_s=0.3):
            kill(each)

    def kill_part(self, site: str) -> None:
        """Kill -9 the process of a part."""
        part_id = self.part(site).run_id
        for each in psutil.process_iter(["cmdline"]):
            if part_id in (each.info["cmdline"] or ()):
                kill(each)

    def story(self) -> str:
        """What its log has, for messages."""
        return self.run.log.read_text()[-5000:] if self.run.log.exists() else "no log"

    def table(self) -> dict[int, tuple[dict[str, JsonValue], StepState, dict[str, float], str]]:
        """Values, state, metrics and hash of the weights of each trial; none stands twice."""
        added = [each.trial for each in self.entries() if isinstance(each, Added)]
        values = {each.number: each.values for each in added}
        rows = {}
        for end in self.ends():
            assert end.number not in rows, f"trial {end.number} has ended twice"
            result = read_record(self.run.trial(end.number).step(end.attempt).result, StepResult)
            assert result is not None, f"trial {end.number} has no result"
            weights = _weights(Path(result.outputs["checkpoint"]))
            rows[end.number] = (values[end.number], end.state, end.metrics, weights)
        assert set(rows) == set(range(1, self.num_trials + 1))
        return rows

    def ratio(self) -> str:
        """Return a line with the time of its trials, relative to the ideal one.

        Ideally all slots of a site are busy from the first start there to the last end of all.
        """
        ends = [each for each in self.ends() if each.state is StepState.SUCCEEDED]
        starts = [each for each in self.entries() if isinstance(each, Started)]
        began, parts = min(each.at for each in starts), []
        rates, offsets = [], []
        for site in sorted({each.site for each in ends}):
            took = [each.finished_at - each.started_at for each in ends if each.site == site]
            rates.append(SLOTS / statistics.mean(took))
            offsets.append(min(each.at for each in starts if each.site == site) - began)
            parts.append(
                f"{site}: {len(took)} trials of {statistics.mean(took):.1f} s "
                f"from {offsets[-1]:.0f} s on"
            )
        ideal = (len(ends) + sum(map(operator.mul, rates, offsets))) / sum(rates)
        makespan = max(each.finished_at for each in ends) - began
        return f"{'; '.join(parts)}; {makespan:.0f} s, {makespan / ideal:.2f} of the ideal"


def _weights(checkpoint: Path) -> str:
    """Hash of the weights in a checkpoint; empty for a function, which has none."""
    from headrace.checkpoints.content import read_checkpoint  # they bring PyTorch
    from headrace.checkpoints.weights import weights_hash

    is_there = checkpoint.is_file()
    return weights_hash(read_checkpoint(checkpoint)["state_dict"]) if is_there else ""
