"""One suite over several sites: disturbed, each trial stands once in the table, the same to the bit."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from headrace.files.atomic import read_record
from headrace.recipe.recipe import Recipe
from headrace.states import StepState
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
from support.training import weights_here

_NUM = 60
_MINUTE_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leftover_processes")]


@pytest.fixture
def home(headrace_home: Path, digits_folder: Path) -> Path:
    """Recipe `steady`."""
    write_steady(headrace_home, digits_folder)
    return headrace_home


def test_two_sites_share_a_suite_whose_driver_was_killed(home: Path) -> None:
    for name in ("left", "right"):
        write_local(home, name)
    suite = SitesSuite(home, 12, "--site", "left,right", "suite.policy=spread")
    suite.wait_for_ends(2)
    suite.kill_driver()
    suite.wait_for_success()
    rows = suite.table()
    assert {state for _, state, _, _ in rows.values()} == {StepState.SUCCEEDED}
    places = {each.site: each for each in suite.ends()}
    assert set(places) == {"left", "right"}
    dataset = suite.ledger.run(suite.run_id).outputs["pack"]["dataset"]
    for site, end in places.items():
        recipe = read_record(suite.run.trial(end.number).recipe, Recipe)
        *_, weights = rows[end.number]
        assert weights == weights_here(home / f"again-{site}", recipe, dataset, ranks=1)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_four_sites_are_killed_preempted_and_out_of_reach(
    home: Path, dev_slurm: DevSlurm, second_slurm: DevSlurm, ec2_sim: Ec2Sim
) -> None:
    """The table is that of one site, to the bit; the printed figures are those of the docs."""
    write_local(home, "here", 0.4)
    write_slurm(home, "lab", dev_slurm, 0.3, home / "lab")
    write_ec2(home, "aws", ec2_sim, 0.4)
    alone = SitesSuite(home, _NUM, "--site", "here")
    with far_folder.mounted(second_slurm.shape.folder) as far:
        write_slurm(home, "far", second_slurm, 0.3, far.path, kind="gang")
        alone.wait_for_success()
        sites = ("--site", "here,lab,far,aws", "suite.policy=spread")
        calm = SitesSuite(home, _NUM, *sites)
        calm.wait_for_success()
        suite = SitesSuite(home, _NUM, *sites)
        _disturb(suite, dev_slurm, second_slurm, ec2_sim, far)
        suite.wait_for_success()
        print("\ncalm:", calm.ratio()[1], "\ndisturbed:", suite.ratio()[1])
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
