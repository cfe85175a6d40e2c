"""One suite over several sites, disturbed: each trial once in the table, the same to the bit."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from support import far_folder
from support.command_line import headrace
from support.ec2_sim import Ec2Sim
from support.several_sites import (
    SitesSuite,
    write_ec2,
    write_local,
    write_slurm,
    write_steady,
)
from support.slurm_dev import DevSlurm

_NUM = 60
_MINUTE_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leftover_processes")]


@pytest.fixture
def home(headrace_home: Path, digits_folder: Path) -> Path:
    """Recipe `steady`."""
    write_steady(headrace_home, digits_folder)
    return headrace_home


def test_two_sites_share_a_suite_whose_driver_was_killed(home: Path, digits_folder: Path) -> None:
    function = {"_target_": "objectives.drawn", "seconds": 0.5}
    objective = {"metric": "value", "mode": "max"}
    write_steady(
        home, digits_folder, model=None, train={"function": function},
        suite={"trials_per_node": 1, "objectives": [objective]},
    )  # fmt: skip
    for name in ("left", "right"):
        write_local(home, name)
    suite = SitesSuite(home, 12, "--site", "left,right", "suite.policy=spread")
    suite.wait_for_ends(2)
    suite.kill_driver()
    suite.wait_for_success()
    drawn = {number: np.random.default_rng(number - 1).random() for number in range(1, 13)}
    rows = suite.table()
    assert {number: metrics["value"] for number, (_, _, metrics, _) in rows.items()} == drawn
    assert {each.site for each in suite.ends()} == {"left", "right"}
    print(suite.ratio())


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_four_sites_are_killed_preempted_and_out_of_reach(
    home: Path, dev_slurm: DevSlurm, second_slurm: DevSlurm, ec2_sim: Ec2Sim
) -> None:
    """The table is that of one site, to the bit; the printed figures are those of the docs."""
    write_local(home, "alone")
    write_local(home, "here", 8.0)
    write_slurm(home, "lab", dev_slurm, 6.0, home / "lab")
    write_ec2(home, "aws", ec2_sim, 8.0)
    alone = SitesSuite(home, _NUM, "--site", "alone")
    with far_folder.mounted(second_slurm.shape.folder) as far:
        write_slurm(home, "far", second_slurm, 6.0, far.path, kind="gang")
        alone.wait_for_success()
        sites = ("--site", "here,lab,far,aws", "suite.policy=spread")
        calm = SitesSuite(home, _NUM, *sites)
        calm.wait_for_success()
        suite = SitesSuite(home, _NUM, *sites)
        _disturb(suite, dev_slurm, second_slurm, ec2_sim, far)
        suite.wait_for_success()
        print("\ncalm:", calm.ratio(), "\ndisturbed:", suite.ratio())
        print(headrace("cost", suite.run_id, "--by", "site").stdout)
        assert suite.table() == calm.table() == alone.table()


def _disturb(
    suite: SitesSuite, lab: DevSlurm, far_slurm: DevSlurm, aws: Ec2Sim, far: far_folder.FarFolder
) -> None:
    """Do to each site but the first what happens to such sites, and kill the driver twice."""
    suite.wait_for_start("far")

    def out_of_reach() -> None:
        with far.out_of_reach(), far_slurm.silent():
            time.sleep(_MINUTE_S)

    silence = threading.Thread(target=out_of_reach)
    silence.start()
    try:
        suite.wait_for_start("aws")
        for instance in aws.alive()[:1]:
            aws.notices[instance.id] = '{"action": "terminate", "time": "soon"}'
        suite.kill_driver()
        suite.wait_for_start("lab")
        suite.kill_part("lab")
        lab.run("scancel", *lab.queue())
        suite.wait_for_ends(_NUM // 2)
        suite.kill_driver()
    finally:
        silence.join()
