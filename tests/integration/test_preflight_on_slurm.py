"""Nodes of a gang look at themselves first; workers may run in a real container."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.clusters import lease_client, preflight
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import BadNodes, LeaseSpec
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.recipe.site import Role, Tier
from headrace.states import LeaseState, StepState
from headrace.steps import mailbox
from headrace_probes.probe_records import ProbeRecord
from support import container_image
from support.leases import START_TIMEOUT_S, lease_spec, submit_look, wait_for_state
from support.slurm_dev import DevSlurm
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

NVIDIA_SMI = """\
#!/bin/sh
echo "GPU 0: Fake (UUID: GPU-0)"
[ "$SLURMD_NODENAME" = node2 ] || echo "GPU 1: Fake (UUID: GPU-1)"
"""


def test_a_bad_node_is_named_with_the_reason(tmp_path: Path, slurm: DevSlurm):
    """pains 34: which node is said, and the next lease can avoid it."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    role = _gang(gpus_per_node=2, prologue=[f"export PATH={program.parent}:$PATH"])
    folder = SiteFolder(tmp_path).lease("bad-1")
    lease_client.start(folder, _spec(folder, role))
    wait_for_state(folder, LeaseState.FAILED, START_TIMEOUT_S)
    told = LeaseFiles.read(folder).why_ended
    assert "found 1 bad node: node2: GPUs: nvidia-smi shows 1 of 2" in told
    bad = read_record(folder.bad_nodes, BadNodes)
    assert bad.nodes == ("node2",)
    lease_client.end(folder)


IN_CONTAINER = pytest.mark.skipif(bool(container_image.why_not()), reason=container_image.why_not())


@IN_CONTAINER
def test_workers_run_in_the_container_and_the_host_outside(
    tmp_path: Path, slurm: DevSlurm, no_leftover_processes: None
):
    """pains 38: the control plane is outside, where Slurm's commands are."""
    role = _gang(container=_container(tmp_path), preflight="full")
    folder = _works_inside(tmp_path, role, timeout_s=1)
    looked = [each.name for report in preflight.reports(folder) for each in report.checks]
    assert looked == ["GPUs", "tiers", "locks", "container", "all-reduce"] * 2
    _check_that_a_probe_measures_inside(folder)
    lease_client.end(folder)
    assert LeaseFiles.read(folder).state(0) is LeaseState.CLOSED


def _check_that_a_probe_measures_inside(lease: LeaseFolder) -> None:
    """On both nodes together, from inside the container; its start from outside."""
    options = {"only": ["network", "container"], "quick": True}
    step = submit_look(lease, nodes=2, kind="probe", options=options)
    wait_until(lambda: mailbox.outcome(step), START_TIMEOUT_S, "the probe to end")
    result = mailbox.outcome(step)
    assert result.state is StepState.SUCCEEDED, result.failure
    record = read_record(Path(str(result.outputs["probe"])), ProbeRecord)
    assert record.container.startswith("charliecloud ")
    assert [node["name"] for node in record.nodes] == ["node-0", "node-1"]
    found = {each.name: each for each in record.findings.measurements}
    assert found["all-reduce by gloo, 8 B"].settings == "2 ranks"
    for name in ("python -c pass", "import torch"):
        assert len(found[f"{name}, bare"].values) == len(found[f"{name}, charliecloud"].values) == 3


@IN_CONTAINER
def test_nodes_of_a_pool_run_in_the_container(
    tmp_path: Path, slurm: DevSlurm, no_leftover_processes: None
):
    """pains 38: each looks at the container first, from outside."""
    role = _gang(nodes=1, container=_container(tmp_path)).model_copy(update={"kind": "pool"})
    folder = _works_inside(tmp_path, role, timeout_s=START_TIMEOUT_S)
    (report,) = preflight.reports(folder)
    assert [each.name for each in report.checks] == ["GPUs", "tiers", "locks", "container"]
    lease_client.end(folder)
    assert LeaseFiles.read(folder).state(0) is LeaseState.CLOSED


def _container(folder: Path) -> dict[str, Any]:
    image = container_image.make_image(folder / "image", folder, folder / "cache")
    if reason := container_image.starts(image):
        pytest.skip(reason)
    return container_image.container(image)


def _works_inside(site: Path, role: Role, timeout_s: float) -> LeaseFolder:
    """Open a lease, and see that all its workers are in the container, which this process is not.

    Args:
        site: The site's folder.
        role: Its machines.
        timeout_s: Longest wait for nodes once it is ready.
    """
    folder = SiteFolder(site).lease("contained-1")
    lease_client.start(folder, _spec(folder, role))
    wait_for_state(folder, LeaseState.READY, START_TIMEOUT_S)
    assert not Path(container_image.MARK).exists()
    with Fleet.open(folder) as fleet:
        for node in fleet.nodes(role.nodes, timeout_s):
            assert fleet.call(node, os.path.exists, container_image.MARK)
            assert fleet.call(node, os.getenv, "COLOUR") == "inside"
            assert fleet.call(node, os.getenv, "HEADRACE_LEASE_ID") == "contained-1"
    return folder


def test_a_container_that_does_not_start_is_told(tmp_path: Path, slurm: DevSlurm):
    missing = {"runtime": "charliecloud", "image": str(tmp_path / "nope"), "python": sys.executable}
    folder = SiteFolder(tmp_path).lease("missing-1")
    lease_client.start(folder, _spec(folder, _gang(nodes=1, container=missing)))
    wait_for_state(folder, LeaseState.FAILED, START_TIMEOUT_S)
    assert "container: it ended with code 1: ch-run" in LeaseFiles.read(folder).why_ended
    lease_client.end(folder)


def _gang(nodes: int = 2, **batch: Any) -> Role:
    return Role(
        backend="slurm",
        kind="gang",
        nodes=nodes,
        lifetime=600,
        batch={"interface": "lo", "poll": 0.2, **batch},
    )


def _spec(folder: LeaseFolder, role: Role) -> LeaseSpec:
    tier = Tier(name="disk", folder=str(folder.path.parent.parent / "cache"))
    return lease_spec(folder, role).model_copy(update={"tiers": (tier,)})
