from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from rich.table import Table

from headrace import api
from headrace.cli.plan import frontier_shown
from headrace.errors import SiteError
from headrace.execution.execute import planned
from headrace.runs.planning import Planner
from headrace.runs.prediction import ExpectedSite, Frontier, FrontierPoint, Interval
from support.command_line import headrace
from support.factories import write_site
from support.many_sites import write_sites


def test_the_scripts_that_a_run_on_slurm_would_submit(headrace_home: Path):
    told = headrace("plan", "digits", "--site", "slurm-dev", "--dry-run")
    assert told.exit_code == 0, told.output
    assert "cpu: pool of up to 4 nodes, on slurm, for pack\n" in told.output
    assert "-m headrace.clusters.worker" in told.output
    assert "gpu: gang of 2 nodes, 2 ranks each, on slurm, for stage, train, evaluate" in told.output
    assert told.output.count("#!/bin/bash\n#SBATCH --job-name=headrace-RUN-") == 2
    assert "#SBATCH --gres=gpu:2" in told.output
    assert [each.name for each in headrace_home.iterdir()] == ["examples"]  # nothing is written


def test_a_local_run_submits_nothing(headrace_home: Path):
    told = headrace("plan", "digits", "--json")
    assert {each["script"] for each in json.loads(told.output)["leases"]} == {""}


def test_ranks_are_those_of_the_recipe(headrace_home: Path):
    told = headrace("plan", "digits", "train.ranks_per_node=1")
    assert "gpu: gang of 1 node, 1 rank each, on local" in told.output


def test_a_role_that_the_site_lacks_is_told(headrace_home: Path):
    with pytest.raises(SiteError):
        headrace("plan", "digits", "train.role=tpu")


SUITE = ["digits", "+suite.seeds=3", "--site", "lab,box"]


def test_a_suite_over_several_sites_has_leases_of_each(headrace_home: Path):
    write_sites(headrace_home)
    with patch("headrace.execution.execute.planner", Planner):
        told = json.loads(headrace("plan", *SUITE, "--json").output)
        found = api.plan("digits", ["lab", "box"], suite={"seeds": 3})
    at = [("", "cpu"), ("", "driver"), ("lab", "gpu"), ("box", "gpu")]
    assert [(each["site"], each["role"]) for each in told["leases"]] == at
    assert [(each.site, each.role) for each in found.leases] == at
    assert told["frontier"]["points"] == []
    assert found.prediction.seconds is None


@pytest.mark.parametrize("sites", ["lab", "lab,box"])
def test_a_suite_is_planned_by_the_words_of_a_sweep(headrace_home: Path, sites: str) -> None:
    write_sites(headrace_home)
    words = ["data.global_batch_size=32,64", "seed=range(0,3)", "trainer.max_epochs=1"]
    with patch("headrace.cli.plan.planned", wraps=planned) as asked:
        told = headrace("plan", "digits", *words, "--site", sites)
    assert told.exit_code == 0, told.output
    recipe, _ = asked.call_args.args
    assert (recipe.suite.seeds, recipe.trainer.max_epochs) == ((0, 1, 2), 1)
    assert recipe.suite.grid == {"data.global_batch_size": (32, 64)}
    assert recipe.suite.sites == (tuple(sites.split(",")) if "," in sites else ())


def test_a_cost_without_a_known_price_is_not_shown_as_none():
    known = Interval(low=1.0, mean=1.0, high=1.0)
    usd_of = {"lab": 0.0, "aws": 1.0}
    point = FrontierPoint(policy="spread", makespan_s=known, usd=known, usd_of=usd_of, ends_of={})

    def cells(**prices: float | None) -> list[list[str]]:
        sites = tuple(
            ExpectedSite(site=name, slots=1, start_s=0.0, speed=1.0, usd_per_hour=usd)
            for name, usd in prices.items()
        )
        _, table, *_ = frontier_shown(Frontier(points=(point,), sites=sites))
        assert isinstance(table, Table)
        return [[str(each) for each in column.cells] for column in table.columns[3:]]

    assert cells(lab=None, aws=3.0) == [["$1.00 ± 0.00+?"], ["?"], ["$1.00"]]
    assert cells(lab=None, aws=None) == [["?"], ["?"], ["?"]]
    assert cells(lab=0.0, aws=3.0) == [["$1.00 ± 0.00"], ["$0.00"], ["$1.00"]]


@pytest.mark.parametrize("command", ["plan", "check"])
def test_a_site_that_lacks_something_is_named(headrace_home: Path, command: str):
    write_sites(headrace_home)
    write_site(headrace_home, "box", folder=str(headrace_home / "b"), secrets={"T": "env:T"})
    if command == "check":
        told = headrace(command, *SUITE)
        assert told.exit_code == 1
        assert "box: its secret T" in " ".join(told.output.split())
        return
    with pytest.raises(SiteError, match="box: its secret T"):
        headrace(command, *SUITE)


@pytest.mark.parametrize("name", ["laptop", "slurm-dev"])
def test_built_in_sites_have_a_plan(headrace_home: Path, name: str):
    told = headrace("plan", "digits", "--site", name)
    assert told.exit_code == 0
    assert "#!/bin" not in told.output
