"""`headrace site check` on a real Slurm, and on sites that cannot work."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from headrace.batch.commands import CommandResult, LocalCommands
from headrace.cli.commands import build
from headrace.recipe.load import BUILT_IN
from headrace.site_check import check as looks
from support.factories import write_site
from support.login_node import LoginNode
from support.site_checks import check, graded
from support.slurm_dev import DevSlurm

pytestmark = [pytest.mark.slow]


def test_a_good_site_has_nothing_to_fix(headrace_home: Path, slurm: DevSlurm):
    """A short job of the role's shape looks at all nodes, and leaves nothing behind."""
    code, found = check(_site(headrace_home), "--role", "gpu", "--submit")
    assert code == 0, found
    assert {(part, name) for part, name, grade, _ in found if grade != "ok"} == set()
    assert {name for part, name, _, _ in found if part == "gpu"} >= {
        "commands", "accounting", "partition", "nodes", "time", "account", "qos",
        "sbatch --test-only", "python", "job", "clock", "node1", "node2",
    }  # fmt: skip
    told = [text for _, name, _, text in found if name == "sbatch --test-only"]
    assert " to start at 20" in told[0]  # a date, no seconds since the epoch
    assert slurm.queue() == []
    assert list((headrace_home / "leases").glob("check-*")) == []


def test_a_pool_is_tried_as_one_of_its_nodes_and_as_the_job_of_its_host(
    headrace_home: Path, slurm: DevSlurm
):
    """The host in its job must be allowed to submit, and be reached by the node."""
    code, found = check(_site(headrace_home, cpu={"host": "job"}), "--role", "cpu", "--submit")
    assert code == 0, found
    assert {(part, name) for part, name, grade, _ in found if grade != "ok"} == set()
    told = {name: text for part, name, _, text in found if part == "cpu"}
    assert told["job"].startswith("1 node was there after ")
    assert [name for name in told if name.startswith("node") and name != "nodes"] == ["node1"]
    assert "locks" in told["node1"]
    assert re.match(r"its job was there after \d+ s, and had a node after \d+ s", told["host"])
    assert slurm.queue() == []
    assert list((headrace_home / "leases").glob("check-*")) == []


@pytest.mark.parametrize(
    ("changes", "wrong", "told"),
    [
        ({"batch": {"partition": "mian"}}, "partition", "Did you mean 'main'?"),
        ({"nodes": 5}, "nodes", "4 of 5 with"),
        ({"batch": {"gpus_per_node": 3}}, "nodes", "others have 2 GPUs (node[1-4])"),
        ({"batch": {"memory_per_node": "1TiB"}}, "nodes", "GiB (node[1-4])"),
        ({"lifetime": "99h"}, "time", "main gives 48 h"),
        ({"batch": {"qos": "gold"}}, "qos", "Valid: normal."),
        ({"batch": {"constraint": "ib"}}, "sbatch --test-only", "Invalid feature specification"),
        ({"batch": {"python": "/bin/true"}}, "python", "Install the same version in both"),
    ],
)
def test_what_is_wrong_with_a_site_is_told(
    headrace_home: Path, slurm: DevSlurm, changes: dict[str, Any], wrong: str, told: str
):
    code, found = check(_site(headrace_home, **changes), "--role", "gpu")
    assert code == 1
    failed = {name: seen for part, name, grade, seen in found if grade == "fail"}
    assert told in failed[wrong]


def test_a_configuration_that_is_not_there_is_found_by_one_bounded_question(
    headrace_home: Path, slurm: DevSlurm, monkeypatch: pytest.MonkeyPatch
):
    """Each of Slurm's commands looks for it for a minute."""
    asked = []
    run = LocalCommands.run

    def counted(self: LocalCommands, command: Sequence[str], text: str = "") -> CommandResult:
        asked.append(command)
        return run(self, command, text)

    monkeypatch.setattr(LocalCommands, "run", counted)
    monkeypatch.setattr(looks, "_PROBE_S", 2.0)
    wrong = {"config": "/nope/slurm.conf"}
    file = _site(headrace_home, batch=wrong)
    site = yaml.safe_load(file.read_text())
    site["roles"]["other"] = site["roles"]["gpu"]
    file.write_text(yaml.safe_dump(site))
    code, found = check(file, "--role", "gpu", "--role", "other")
    assert code == 1
    for role in ("gpu", "other"):
        told = graded(found, role, "fail")["commands"]
        assert "cannot stat file /nope/slurm.conf" in told
        assert "`batch.config` of the role" in told
    assert [each[0] for each in asked if each[0] != sys.executable] == ["sbatch"]


def test_slurm_is_asked_through_a_login_node(
    headrace_home: Path, slurm: DevSlurm, login_node: LoginNode
):
    """pains 14: over one connection."""
    login = login_node.login.model_dump()
    code, found = check(_site(headrace_home, batch={"login": login}), "--role", "gpu")
    assert code == 0, found
    told = {name for part, name, grade, _ in found if (part, grade) == ("gpu", "ok")}
    assert {"login", "commands", "partition", "nodes", "sbatch --test-only"} <= told
    assert login_node.num_connections == 1


def test_a_folder_that_cannot_be_used(headrace_home: Path):
    (headrace_home / "file").touch()
    site = write_site(headrace_home, "bad", folder=str(headrace_home / "file" / "below"))
    code, found = check(site)
    assert code == 1
    assert [name for _, name, grade, _ in found if grade == "fail"] == ["folder"]


def test_sites_are_listed_and_shown(headrace_home: Path):
    listed = CliRunner().invoke(build(), ["site", "list", "--json"])
    assert {"laptop", "slurm-dev"} <= set(json.loads(listed.stdout))
    shown = CliRunner().invoke(build(), ["site", "show", "laptop"])
    assert yaml.safe_load(shown.stdout)["roles"]["gpu"]["ranks_per_node"] == 2


def _site(home: Path, **changes: Any) -> Path:
    """Site `slurm-dev` whose role `gpu` is asked for otherwise."""
    text = (BUILT_IN / "sites" / "slurm-dev.yaml").read_text().replace("poll: 2s", "poll: 0.2s")
    site = yaml.safe_load(text)
    role = site["roles"]["gpu"]
    batch = role["batch"] | changes.pop("batch", {})
    site["roles"]["cpu"] |= changes.pop("cpu", {})
    site["roles"]["gpu"] = role | changes | {"batch": batch}
    file = home / "changed.yaml"
    file.write_text(yaml.safe_dump(site))
    return file
