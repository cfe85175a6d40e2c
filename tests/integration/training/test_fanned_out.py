"""Calls that a function fans out over all nodes of its lease, by `headrace.script.client`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import script
from headrace.clusters.node_calls import no_check
from headrace.errors import UserError
from headrace.execution.execute import execute
from headrace.ledger.ledger import open_ledger
from support.factories import write_yaml
from support.runs import make_run
from support.training import CODE

pytestmark = pytest.mark.slow

NUM_ITEMS = 40


def test_a_function_maps_items_over_all_nodes_of_its_lease(
    headrace_home: Path, no_leftover_processes: None
) -> None:
    """At most a call a thread at once; at the block's end nothing is left for the workers."""
    function = {"_target_": "fanning.squares", "num_items": NUM_ITEMS}
    train = {"function": function, "nodes": 2}
    write_yaml(
        headrace_home / "recipes" / "fan.yaml",
        {"name": "fan", "code": [str(CODE)], "train": train},
    )
    gpu = {"kind": "gang", "nodes": 2, "threads_per_node": 3}
    tier = {"name": "disk", "folder": str(headrace_home / "tier"), "reserve": 0}
    site = {"name": "two", "folder": str(headrace_home / "two"), "roles": {"gpu": gpu}}
    write_yaml(headrace_home / "sites" / "two.yaml", site | {"tiers": [tier]})
    run = make_run(recipe="fan", site="two")
    assert execute(run, no_check) is None
    (step,) = open_ledger().attempts(run.run_id)
    assert step.outputs["metrics"] == {
        "sum": sum(i**2 for i in range(NUM_ITEMS)), "nodes": 2, "most_at_once": 3, "left": 0,
    }  # fmt: skip
    assert {each.kind for each in open_ledger().usage(run.run_id)} == {"train"}


def test_outside_of_headrace_there_are_no_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_LAUNCH", raising=False)
    with pytest.raises(UserError, match="HEADRACE_LAUNCH is not set"), script.client():
        pass
