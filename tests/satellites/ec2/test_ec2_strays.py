"""What runs in EC2 and nobody answers for: it is found by its tags, in all regions, and ended.

The instances are simulated, and never come to their user data, as those of a wrong image: so
nothing on them ends them.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.clusters.lease_files import write_heartbeat
from headrace.clusters.lease_records import Ending, HostRecord, job_name
from headrace.errors import SiteError, UnknownNameError, UserError
from headrace.execution.reap import reap
from headrace.files.atomic import write_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.site import Role
from headrace.states import LeaseState
from headrace_ec2 import api as ec2_api
from headrace_ec2.backend import Ec2
from support.command_line import headrace
from support.ec2_sim import Ec2Sim, name_of
from support.factories import job_spec
from support.leases import lease_spec
from support.ledger_rows import lease_row, run_row
from support.runs import ended_process

_LONG_AGO = "2020-01-01T00:00:00Z"
_CLOSED_S = 90.0


@pytest.fixture
def home(headrace_home: Path, ec2_sim: Ec2Sim) -> Iterator[Path]:
    """A home with one site on EC2, `aws`."""
    ec2_sim.boots = False
    _write_site(headrace_home, "aws", _role(ec2_sim))
    yield headrace_home
    for each in ec2_sim.alive():
        ec2_sim.terminate(each)


@pytest.fixture
def start(home: Path, ec2_sim: Ec2Sim) -> Callable[..., Any]:
    """Starts an instance of a lease in the site's folder, or in another one; with other tags."""

    def make(lease_id: str, root: Path = home / "aws", **tags: str) -> Any:
        serial = "-1" if "cpu" in lease_id else ""  # jobs of pools are counted
        name = f"{job_name(SiteFolder(root).lease(lease_id))}{serial}"
        Ec2(ec2_sim.options()).submit(job_spec(name=name, time_limit_s=600.0))
        (instance,) = [each for each in ec2_sim.alive() if name_of(each) == name]
        instance.add_tags({f"headrace:{key.replace('_', '-')}": tags[key] for key in tags})
        return instance

    return make


Start = Callable[..., Any]


def test_strays_are_ended_and_nothing_that_somebody_answers_for(
    home: Path, ec2_sim: Ec2Sim, start: Start
):
    """pains 22: by their tags, whatever has become of folders and processes."""
    _alive(home, ec2_sim, "living-gpu-1")
    _closed(home, ec2_sim, "over-gpu-1", since_s=_CLOSED_S)
    _closed(home, ec2_sim, "leaving-gpu-1", since_s=-600.0)  # on a slow machine, too
    _lost(home, ec2_sim, "lost-cpu-1")
    open_ledger().add_run(run_row("run-1"))
    elsewhere, far = home / "another-home", Path("/another-machine")
    _on_record(home / "aws", "gone-cpu-1", LeaseState.CLOSED)
    _on_record(far, "far-cpu-1", LeaseState.READY)
    kept = [
        start("living-gpu-1"),
        start("leaving-gpu-1"),
        start("far-cpu-1", far),  # the ledger is shared
        start("other-gpu-1", elsewhere, owner="ann@elsewhere"),
        start("over-gpu-1", elsewhere),  # the same id, in another folder
        start("no-end-gpu-1", ends_at="?"),
    ]
    strays = [
        start("over-gpu-1"),
        start("lost-cpu-1"),
        start("gone-cpu-1"),
        start("late-gpu-1", elsewhere, owner="ann@elsewhere", ends_at=_LONG_AGO),
    ]
    strays[0].stop()  # costs as long as its volume is there
    foreign = [start("over-gpu-1", home / "a third"), start("over-gpu-1", home / "a fourth")]
    foreign[0].add_tags({"Name": "web-server"})
    foreign[1].ec2_backend.delete_tags([foreign[1].id], {"headrace:ends-at": None})
    reaped = headrace("lease", "reap").stdout
    for each in strays:
        assert f"instance {each.id} (m5.large in us-east-1a) of lease " in reaped
    assert {each.id for each in ec2_sim.alive()} == {each.id for each in [*kept, *foreign]}
    ids = {each["id"]: each for each in _listed()["found"]}
    assert set(ids) == {each.id for each in kept}
    assert [ids[each.id]["lease"] for each in kept] == [
        "alive", "ended", "alive", "unknown", "unknown", "unknown"]  # fmt: skip
    assert not any(each["stray"] for each in ids.values())
    assert "Nothing to reap" in headrace("lease", "reap").stdout


def test_a_region_that_does_not_answer_is_told_and_hides_no_other(
    home: Path, ec2_sim: Ec2Sim, start: Start, free_port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ec2_api, "_ATTEMPTS", 1)  # botocore's pauses take seconds
    ec2_api._client.cache_clear()
    silent = {"region": "eu-west-1", "endpoint_url": f"http://127.0.0.1:{free_port}"}
    _write_site(home, "far", _role(ec2_sim, **silent))
    _closed(home, ec2_sim, "over-gpu-1", since_s=_CLOSED_S)
    stray = start("over-gpu-1")
    told = f"eu-west-1 at http://127.0.0.1:{free_port}: EC2 does not answer describe_instances"
    listed = headrace("cloud", "list")
    assert listed.exit_code == 1
    assert stray.id in listed.stdout
    assert f"not searched: {told}" in listed.stderr
    assert "Is EC2 reachable from here?" in listed.stderr
    reaped = headrace("lease", "reap")
    assert f"strays were not searched in {told}" in reaped.stdout
    assert f"instance {stray.id}" in reaped.stdout
    assert ec2_sim.alive() == []
    assert headrace("cloud", "list", "--site", "aws").exit_code == 0
    with pytest.raises(UnknownNameError, match="headrace has no 'i-0' in EC2"):
        headrace("cloud", "destroy", "i-0", "--site", "aws")


def test_what_is_seen_of_an_instance(
    home: Path, ec2_sim: Ec2Sim, start: Start, monkeypatch: pytest.MonkeyPatch
):
    _closed(home, ec2_sim, "over-gpu-1", since_s=_CLOSED_S)
    instance = start("over-gpu-1")
    profile = "[profile twin]\naws_access_key_id = k\naws_secret_access_key = s\n"
    (home / "aws-config").write_text(profile)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(home / "aws-config"))
    _write_site(home, "twin", _role(ec2_sim, profile="twin"))  # of the same account
    assert "us-east-1 as twin at" in headrace("cloud", "list", "--site", "twin", "--json").stdout
    (seen,) = _listed()["found"]
    assert 0 <= time.time() - seen.pop("since") < 600
    assert 0 < seen.pop("ends_at") - time.time() <= 660
    assert seen.pop("owner")
    assert seen.pop("place").startswith("us-east-1 at http://127.0.0.1:")
    assert seen == {
        "id": instance.id, "kind": "instance", "type": "m5.large", "market": "on-demand",
        "zone": "us-east-1a", "state": "running", "job": name_of(instance),
        "lease_id": "over-gpu-1", "lease": "ended", "stray": "its lease has ended", "is_own": True,
    }  # fmt: skip
    table = headrace("cloud", "list").stdout
    for word in (instance.id, "m5.large", "over-gpu-1", "ended", "its lease has ended"):
        assert word in table
    ec2_sim.terminate(instance)
    assert "headrace has no resources in us-east-1 at http" in headrace("cloud", "list").stdout
    for name in ("aws", "twin"):
        (home / "sites" / f"{name}.yaml").unlink()
    assert "no site has a role on EC2" in headrace("cloud", "list").stdout


def test_only_what_is_meant_is_destroyed(
    home: Path, ec2_sim: Ec2Sim, start: Start, monkeypatch: pytest.MonkeyPatch
):
    _alive(home, ec2_sim, "living-gpu-1")
    _closed(home, ec2_sim, "over-gpu-1", since_s=_CLOSED_S)
    living, over = start("living-gpu-1"), start("over-gpu-1")
    mine = start("mine-gpu-1", home / "another-home")
    hers = start("hers-gpu-1", home / "another-home", owner="ann@elsewhere")
    everything = [living, over, mine, hers]
    monkeypatch.setattr("sys.stdin", io.StringIO())  # nobody answers the question
    refused = headrace("cloud", "destroy", "--all-strays")
    assert (refused.exit_code, set(_alive_ids(ec2_sim))) == (1, {each.id for each in everything})
    assert "End this? [y/N]" in refused.output
    done = headrace("cloud", "destroy", "--site", "aws", "--yes")
    assert done.exit_code == 0
    assert done.stdout == (
        f"instance {over.id} (m5.large in us-east-1a) of lease over-gpu-1: ended\n"
    )
    named = headrace("cloud", "destroy", "--yes", *(each.id for each in [living, mine, hers]))
    assert named.exit_code == 1
    assert f"kept {living.id}: its lease lives; `headrace lease close" in named.stdout
    assert f"kept {hers.id}: it was started by ann@elsewhere; add --force" in named.stdout
    assert set(_alive_ids(ec2_sim)) == {living.id, hers.id}
    forced = headrace("cloud", "destroy", "--yes", "--force", "living-gpu-1", hers.id)
    assert (forced.exit_code, ec2_sim.alive()) == (0, [])
    assert "Nothing to end" in headrace("cloud", "destroy", "--all-strays").stdout
    for wrong in ([], ["i-0", "--all-strays"]):
        with pytest.raises(UserError, match="ids, or all strays"):
            headrace("cloud", "destroy", *wrong)
    with pytest.raises(SiteError, match="Site laptop has no role of backend ec2"):
        headrace("cloud", "list", "--site", "laptop")


def test_one_that_ec2_refuses_to_end_keeps_no_other(home: Path, ec2_sim: Ec2Sim, start: Start):
    _closed(home, ec2_sim, "over-gpu-1", since_s=_CLOSED_S)
    _closed(home, ec2_sim, "over-gpu-2", since_s=_CLOSED_S)
    protected, other = start("over-gpu-1"), start("over-gpu-2")
    protected.disable_api_termination = True
    done = headrace("cloud", "destroy", "--all-strays", "--yes")
    assert done.exit_code == 1
    assert f"{protected.id} (m5.large in us-east-1a) of lease over-gpu-1: not ended" in done.stdout
    assert "OperationNotPermitted" in done.stdout
    assert _alive_ids(ec2_sim) == [protected.id]
    assert other.id not in _alive_ids(ec2_sim)
    protected.disable_api_termination = False


def test_a_volume_that_its_instance_left_behind_is_ended(home: Path, ec2_sim: Ec2Sim, start: Start):
    """pains 22: images may say that a volume outlives its instance."""
    _closed(home, ec2_sim, "over-gpu-1", since_s=_CLOSED_S)
    instance = start("over-gpu-1")
    (device,) = instance.block_device_mapping.values()
    device.delete_on_termination = False
    ec2_sim.terminate(instance)
    (volume,) = ec2_sim.volumes()
    (seen,) = _listed()["found"]
    assert (seen["id"], seen["kind"], seen["state"]) == (volume.id, "volume", "available")
    lines = reap(lambda _run: None, lambda _run, _step: False)  # as the reaper's DAG does
    assert lines == (f"volume {volume.id} (gp2, 8 GiB in us-east-1a) of lease over-gpu-1: ended",)
    assert ec2_sim.volumes() == []


def test_a_role_that_was_changed_is_looked_for_where_its_last_leases_were(
    home: Path, ec2_sim: Ec2Sim, start: Start
):
    _closed(home, ec2_sim, "over-gpu-1", since_s=_CLOSED_S)
    start("over-gpu-1")
    (home / "sites" / "aws.yaml").unlink()
    assert _listed()["found"] == []
    open_ledger().add_run(run_row("run-1"))
    _on_record(home / "aws", "over-gpu-1", LeaseState.CLOSED)
    assert "its lease has ended" in headrace("cloud", "list").stdout


def _listed() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(headrace("cloud", "list", "--json").stdout)
    return content


def _alive_ids(sim: Ec2Sim) -> list[str]:
    return [each.id for each in sim.alive()]


def _role(sim: Ec2Sim, **changes: Any) -> dict[str, Any]:
    return {"backend": "ec2", "kind": "gang", "ec2": {**sim.values(), **changes}}


def _write_site(home: Path, name: str, role: dict[str, Any]) -> None:
    tiers = [{"name": "disk", "folder": str(home / "tier")}]
    content = {"name": name, "folder": str(home / name), "roles": {"gpu": role}, "tiers": tiers}
    (home / "sites").mkdir(exist_ok=True)
    (home / "sites" / f"{name}.yaml").write_text(yaml.safe_dump(content))


def _lease(home: Path, sim: Ec2Sim, lease_id: str, host: ProcessIdentity) -> LeaseFolder:
    folder = SiteFolder(home / "aws").lease(lease_id)
    folder.path.mkdir(parents=True)
    spec = lease_spec(folder, Role(**_role(sim)))
    write_record(folder.spec, spec.model_copy(update={"lost_after_s": 3600.0}))
    write_record(folder.host, HostRecord(process=host))
    write_heartbeat(folder)
    return folder


def _alive(home: Path, sim: Ec2Sim, lease_id: str) -> None:
    _lease(home, sim, lease_id, ProcessIdentity.of())


def _lost(home: Path, sim: Ec2Sim, lease_id: str) -> None:
    _lease(home, sim, lease_id, ended_process())


def _on_record(root: Path, lease_id: str, state: LeaseState) -> None:
    """A lease of which the ledger knows, and that is over for some time if it has ended."""
    folder = str(SiteFolder(root).lease(lease_id).path)
    ended_at = None if state.is_active else time.time() - _CLOSED_S
    row = lease_row(lease_id, folder=folder, backend="ec2", state=state, ended_at=ended_at)
    open_ledger().add_lease(row, max_active=9)


def _closed(home: Path, sim: Ec2Sim, lease_id: str, since_s: float) -> LeaseFolder:
    folder = _lease(home, sim, lease_id, ended_process())
    write_record(folder.closed, Ending(state=LeaseState.CLOSED, reason="its work is done"))
    at = time.time() - since_s
    os.utime(folder.closed, (at, at))
    return folder
