"""A site whose folder is a GlusterFS volume, mounted by the control side and by each node."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from headrace.clusters.lease_records import job_name
from headrace.execution.execute import execute
from headrace.files.atomic import write_text
from headrace.files.locks import at_once
from headrace.ledger.ledger import open_ledger
from support.bad_input import Place
from support.gluster import volume, why_not
from support.login_node import JOBS
from support.net_hosts import DATA, NetHost
from support.runs import make_run
from support.site_checks import check, graded
from support.training import weights_here
from support.waiting import wait_until

pytestmark = [pytest.mark.slow]

NODE_BYTES = 64 * 2**20
TRY_LOCK = """\
import sys
from pathlib import Path
from headrace.files.locks import locked_at_once
print(locked_at_once(Path(sys.argv[1])) is not None)
"""


def test_two_nodes_train_from_a_folder_that_each_mounts_for_itself(
    no_leftover_processes: None, net_hosts, headrace_home: Path, digits_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if reason := why_not():
        pytest.skip(reason)
    hosts = net_hosts([NODE_BYTES] * 3)
    *nodes, server = hosts.hosts
    monkeypatch.setenv("HEADRACE_DIGITS", str(digits_folder))
    folder = Path(tempfile.mkdtemp(prefix="headrace-gluster-", dir="/tmp"))
    try:
        with volume(folder, server, nodes) as shared:
            _check_locks_and_files(shared, nodes[0])
            batch = {
                "interface": DATA, "poll": 0.2, "python": sys.executable,
                "hosts": [login.model_dump() for login in hosts.logins[:2]],
            }  # fmt: skip
            gang = {"backend": "ssh", "kind": "gang", "nodes": 2, "lifetime": 600, "batch": batch}
            tiers = [{"name": "own", "folder": str(hosts.storage / "tier"), "reserve": 0}]
            Place(headrace_home).write_site(
                "two", folder=str(shared / "site"), roles={"gpu": gang}, tiers=tiers
            )
            _check_site(headrace_home / "sites" / "two.yaml")
            _check_run(headrace_home)
    finally:
        shutil.rmtree(folder)


def _check_locks_and_files(shared: Path, node: NetHost) -> None:
    lock, status = shared / "lock", shared / "status"
    tried = [*node.command, sys.executable, "-c", TRY_LOCK, str(lock)]
    with at_once(lock) as is_held:
        assert is_held
        assert subprocess.check_output(tried, text=True) == "False\n"
    assert subprocess.check_output(tried, text=True) == "True\n"
    looked = [*node.command, "cat", str(status)]
    for text in ("first", "second"):
        write_text(status, text)
        wait_until(lambda: _output(looked) == text, 60, "the other mount to show the file")  # noqa: B023


def _check_site(site: Path) -> None:
    code, found = check(site)
    assert code == 0, found
    assert "(fuse.glusterfs)" in graded(found, "site", "ok")["folder"]
    assert {"locks", "files"} <= graded(found, "site", "ok").keys()
    assert {"folder", "python"} <= graded(found, "gpu", "ok").keys()


def _check_run(home: Path) -> None:
    """Packed there, staged from there by both nodes, trained with checkpoints there."""
    changes = ("pack_role=gpu", "trainer.max_epochs=1", "trainer.accelerator=cpu")
    run = make_run(recipe="digits", site="two", overrides=changes)
    try:
        assert execute(run, lambda: None) is None
    finally:
        for lease in open_ledger().leases(run_id=run.run_id):
            shutil.rmtree(JOBS / job_name(run.lease_folder(lease.lease_id)))
    steps = {each.step: each.outputs for each in open_ledger().attempts(run.run_id)}
    assert [row["copied_bytes"] > 0 for row in steps["stage"]["nodes"]] == [True, True]
    trained = steps["train"]
    whole = weights_here(home / "whole", run.recipe, steps["pack"]["dataset"], ranks=2)
    assert trained["weights_xxh3"] == whole


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
