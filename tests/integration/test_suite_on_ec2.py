"""A suite on instances of two types, one of which is taken away while trials run there."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from headrace.states import StepState
from headrace.status.lease import lease_view as view
from support.command_line import headrace
from support.ec2_sim import Ec2Sim, client_error
from support.held_suite import HeldSuite
from support.paced_run import Waiting, until

pytestmark = [pytest.mark.slow]

_USD = {"c5.large": 7200.0, "m5.large": 3600.0}


def test_trials_go_on_elsewhere_after_a_spot_notice_and_pay_for_their_own_instances(
    headrace_home: Path, ec2_sim: Ec2Sim, no_leftover_processes: None
):
    """pains 22, 37: nothing more begins on the instance; none stays, and each has its price."""
    notes = headrace_home / "notes"
    notes.mkdir()
    prices = {kind: {"spot": usd} for kind, usd in _USD.items()}
    suite = HeldSuite(
        headrace_home,
        {
            "backend": "ec2",
            "kind": "pool",
            "nodes": 2,
            "lifetime": 600,
            "keep_nodes": 0.5,
            "batch": {"interface": "lo", "poll": 0.2},
            "ec2": {
                **ec2_sim.values(),
                "instance_types": list(_USD),
                "markets": ["spot"],
                "prices": prices,
            },
        },
        {
            "train": {"function": {"_target_": "objectives.held", "x": 1.0, "notes": str(notes)}},
            "suite": {
                "objectives": [{"metric": "value"}],
                "trials_per_node": 1,
                "grid": {"train.function.x": [1.0, 2.0, 3.0, 4.0]},
            },
        },
    )

    def only_one_c5(instance_type: str, is_spot: bool) -> None:
        if instance_type == "c5.large" and ec2_sim.instances:
            raise client_error("InsufficientInstanceCapacity", "no more of these")

    ec2_sim.refuse = only_one_c5

    ran: dict[str, int] = {}

    def disturb() -> Waiting:
        yield from suite.attempts_are({1: 1, 2: 1})
        dear, cheap = ec2_sim.alive()
        assert (dear.instance_type, cheap.instance_type) == tuple(_USD)
        ran.update({each.machines[0]: number for number, each in suite.begun().items()})
        assert ran.keys() == {dear.id, cheap.id}
        ec2_sim.notices[dear.id] = '{"action": "terminate"}'
        pool = suite.run.lease_folder(f"{suite.run.run_id}-gpu-1")
        yield from until(lambda: [job for job in view(pool).jobs if "is taken away" in job.why])
        known_s = time.monotonic() + 3.0  # the driver looks each second how long nodes stay
        yield from until(lambda: time.monotonic() > known_s)
        (notes / f"go-{ran[dear.id]}").touch()
        yield from suite.attempts_are({3: 1})
        yield from until(lambda: dear not in ec2_sim.alive())
        ec2_sim.terminate(cheap, "Server.SpotInstanceTermination")
        yield from until(lambda: any(not end.is_final for end in suite.ends()))
        (notes / "go").touch()

    suite.go(disturb())
    ends = suite.ends()
    assert sorted(end.number for end in ends if end.state is StepState.SUCCEEDED) == [1, 2, 3, 4]
    (lost,) = [end for end in ends if end.state is StepState.LOST]
    kinds = {each.id: each.instance_type for each in ec2_sim.instances}
    usage = suite.usage()
    for end in ends:
        row, kind = usage[end.number, end.attempt], kinds[end.machines[0]]
        terms = (row.node_kind, row.usd_per_hour, row.price_source)
        assert terms == (kind, _USD[kind], "site file")
        assert row.usd == pytest.approx(row.node_s * _USD[kind] / 3600)
    assert sum(row.node_kind == "c5.large" for row in usage.values()) == 1  # none after the notice
    both = usage[lost.number, 1], usage[lost.number, 2]
    assert both[0].usd_failed == both[0].usd > 0
    assert usage[3, 1].boot_s > 0  # of the instance that it waited for
    shown = json.loads(headrace("cost", suite.run.run_id, "--by", "trial", "--json").stdout)
    told = {each["trial"]: each["usd"] for each in shown}
    assert told[str(lost.number)] == pytest.approx(sum(row.usd for row in both))
    assert ec2_sim.alive() == []
