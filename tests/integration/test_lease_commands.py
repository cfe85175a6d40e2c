"""`headrace lease` on real leases of the built-in site laptop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headrace.clusters import lease_client
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import HostRecord
from headrace.clusters.local import marked
from headrace.errors import SiteError, UnknownNameError
from headrace.files.atomic import read_record
from headrace.files.layout import LeaseFolder, RunFolder
from headrace.files.tiers import folder_of
from headrace.ledger.ledger import open_ledger
from headrace.recipe.load import load_site
from headrace.recipe.site import Role
from headrace.runs.runs import run_of_folder
from headrace.states import LeaseState, StepState
from headrace.status.traits import traits_of
from headrace.steps import mailbox
from support import command_line
from support.leases import opened, submit_look
from support.waiting import wait_until

Headrace = Callable[..., str]


@pytest.fixture
def headrace(headrace_home: Path) -> Headrace:
    """Runs a command and gives its output; errors come as they are raised."""

    def run(*arguments: str) -> str:
        result = command_line.headrace("lease", *arguments, columns=250)
        assert result.exit_code == 0, result.output
        return result.output

    return run


@pytest.fixture
def lease(headrace_home: Path) -> Iterator[LeaseFolder]:
    folder = opened(headrace_home, Role(kind="gang", nodes=1), lease_id="demo-gpu-1")
    yield folder
    lease_client.end(folder)


def test_seen_entered_and_closed(headrace: Headrace, lease: LeaseFolder) -> None:
    info = lease_client.info(lease)
    assert info is not None
    step = submit_look(lease)
    wait_until(lambda: mailbox.outcome(step), 120, "the step to end")

    table = headrace("list")
    for word in ("demo-gpu-1", "ready", "1 (gang)", info.dashboard_url):
        assert word in table
    (view,) = json.loads(headrace("list", "--json"))
    assert (view["state"], view["num_steps"], view["num_running"]) == ("ready", 1, 0)
    assert 0 <= view["idle_s"] < 60

    shown = headrace("show", "demo-gpu-1")
    for word in ("host.log", "idle stop", "demo/look/1", StepState.SUCCEEDED.value):
        assert word in shown
    assert json.loads(headrace("show", "demo-gpu-1", "--json"))["info"]["nodes"] == 1

    code = "print('sum', client.submit(sum, [1, 2]).result(), len(fleet.nodes(1, 30)))"
    assert "sum 3 1" in headrace("shell", "demo-gpu-1", "-c", code)

    assert "is closed: wrong data" in headrace("close", "demo-gpu-1", "--reason", "wrong data")
    assert not marked([lease])[str(lease.path.resolve())]
    assert "--all" in headrace("list")
    assert "wrong data" in headrace("list", "--all")


def test_an_unknown_lease_names_the_nearest_and_reap_ends_what_a_killed_host_left(
    headrace: Headrace, lease: LeaseFolder
) -> None:
    """pains 22."""
    with pytest.raises(UnknownNameError, match=r"(?s)'demo-gpu-2'.*Did you mean 'demo-gpu-1'"):
        headrace("show", "demo-gpu-2")
    with pytest.raises(SiteError, match=r"(?s)no site 'labtop'.*Did you mean 'laptop'"):
        headrace("list", "--site", "labtop")
    assert headrace("reap") == "Nothing to reap.\n"
    host = read_record(lease.host, HostRecord)
    psutil.Process(host.process.pid).kill()
    wait_until(
        lambda: LeaseFiles.read(lease).state(20) is LeaseState.LOST, 90, "the loss to be seen"
    )
    assert "demo-gpu-1: The lease's host" in headrace("reap")
    assert headrace("reap") == "Nothing to reap.\n"


def test_without_leases(headrace: Headrace) -> None:
    assert headrace("list", "--all").startswith("No leases.\n")
    assert json.loads(headrace("list", "--json")) == []
    assert headrace("reap") == "Nothing to reap.\n"


def test_a_probe_is_a_run_with_a_report_and_leaves_nothing(
    headrace_home: Path, no_leftover_processes: None
) -> None:
    words = ("--quick", "--only", "gemm,memory,network,storage")
    done = command_line.headrace("probe", *words, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    run_id, rows = found["run_id"], found["rows"]
    assert {row["part"] for row in rows} == set(words[2].split(","))
    assert all(len(row["values"]) >= 3 and min(row["values"]) > 0 for row in rows)
    assert found["usd"] is None
    assert 0 < found["cpu_use"] <= 1
    assert found["node_s"] > 0
    notes = found["record"]["findings"]["notes"]
    assert "network: one node, so its two ranks talk only over that" in notes

    record = open_ledger().run(run_id)
    assert (record.state, traits_of(record.folder).kind) == (StepState.SUCCEEDED, "probe")
    (taken,) = (row for row in open_ledger().usage(run_id) if row.kind == "probe")
    assert (taken.nodes, taken.cause) == (1, "succeeded")
    asked = run_of_folder(run_id, RunFolder(Path(record.folder))).request
    assert asked.words == ("probe", "--site", "laptop", *words[1:3], "--quick")
    html = Path(found["report"]).read_text()
    for shown in (run_id, "Spread", "fp32 on cpu", "data:image/png", "python"):
        assert shown in html
    places = [headrace_home, *(folder_of(tier) for tier in load_site("laptop").tiers)]
    assert [left for place in places for left in place.glob("headrace-probe-*")] == []

    shown = command_line.headrace("probe", run_id, columns=80).stdout
    assert "fp32 on cpu" in shown
    assert max(map(len, shown.split("figure ")[1].split("\n\n")[0].splitlines())) <= 80
    both = json.loads(command_line.headrace("probe", run_id, "--compare", run_id, "--json").stdout)
    assert len(both["differences"]) == len(rows)
    assert {each["loss"] for each in both["differences"]} == {0.0}
    assert "within the spread" in Path(both["report"]).read_text()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--only", "gem"), "--only names 'gem', which is not a part\n  Did you mean 'gemm'"),
        (("--role", "gpus"), "Site laptop has no role 'gpus'"),
        (("--nodes", "9"), "9 nodes are requested of role 'gpu', which has 1"),
        (("--compare", "laptopp"), "laptopp"),
    ],
)
def test_a_probe_that_cannot_be_done_is_told_before_anything_is_asked_for(
    headrace_home: Path, words: tuple[str, ...], told: str
) -> None:
    assert told in str(command_line.refusal("probe", *words))
    assert open_ledger().runs() == ()
