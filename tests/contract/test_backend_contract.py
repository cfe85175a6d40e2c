"""What every backend of leases must do; a backend's suite inherits this and names itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urljoin, urlsplit

import psutil
import pytest

from headrace.clusters import lease_client
from headrace.clusters.fleet import Fleet
from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_folders import leftovers, reap
from headrace.clusters.lease_records import HostRecord
from headrace.clusters.local import marked
from headrace.clusters.pages import pages_of
from headrace.clusters.scheduler import THREADS, make_keys
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import LeaseFolder, SiteFolder
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.site import Role
from headrace.states import LeaseState, StepState
from headrace.status.lease import site_leases
from headrace.steps import mailbox
from support import fleet_functions
from support.doors import Door, doors, key_of, knock, no_key, page_status
from support.leases import START_TIMEOUT_S, lease_spec, opened, start, submit_look, wait_for_state
from support.rank_processes import drivers_of, process_name
from support.slurm_dev import DevSlurm
from support.waiting import wait_until

GONE_WITHIN_S = 60.0
"""The promise; a machine with nothing else to do takes seconds."""


PAGES = (
    "",
    "status",
    "status/ws",
    "health",
    "metrics",
    "sitemap.json",
    "info/main/workers.html",
    "json/counts.json",
    "statics/css/base.css",
    "static/js/bokeh.min.js",
)
"""Pages of Dask's dashboard, each of another part of it."""


class BackendContract:
    """What gangs and pools of every backend must do; every test opens a real lease."""

    backend: ClassVar[Literal["local", "slurm"]]
    kind: ClassVar[Literal["gang", "pool"]]
    batch: ClassVar[dict[str, Any]] = {}
    num_doors: ClassVar[int] = 4  # of scheduler, its pages, nanny and worker

    def role(self, **changes: Any) -> Role:
        given = {"kind": self.kind, "nodes": 1, "batch": self.batch}
        return Role(backend=self.backend, **given | changes)

    @pytest.fixture
    def site(self, tmp_path: Path, headrace_home: Path) -> Iterator[Path]:
        """A site's folder; all leases in it are ended afterwards."""
        yield tmp_path / "site"
        for folder in sorted((tmp_path / "site" / "leases").glob("*")):
            lease_client.end(LeaseFolder(folder), grace_s=10)
            assert processes_of(LeaseFolder(folder)) == []

    def test_runs_steps_of_the_mailbox_until_it_is_closed_on_request(self, site: Path) -> None:
        """Those that are submitted early wait for the machines."""
        folder = start(site, self.role(nodes=1))
        steps = [submit_look(folder, name) for name in ("first", "second")]
        for step in steps:
            result = wait_until(lambda step=step: mailbox.outcome(step), 120, "the step to end")
            assert result.state is StepState.SUCCEEDED, result.failure
            (node,) = result.outputs["nodes"]
            assert node["name"] == "node-0"
            assert node["num_cpus"] >= 1
            assert set(node["tiers"]) == {"shm", "disk"}
        (view,) = site_leases(SiteFolder(site))
        assert (view.num_steps, view.state) == (2, LeaseState.READY)
        step = submit_look(folder, "third")
        lease_client.end(folder, grace_s=20, reason="the test is over")
        assert LeaseFiles.read(folder).state(15) is LeaseState.CLOSED
        assert LeaseFiles.read(folder).why_ended == "the test is over"
        assert processes_of(folder) == []
        wait_until(lambda: mailbox.outcome(step) or not step.status.exists(), 120, "an outcome")
        lease_client.end(folder)  # harmless
        assert not folder.tls.exists()  # nobody needs its key any more

    def test_every_port_asks_for_the_key_of_the_lease(self, site: Path) -> None:
        """Other accounts of the machine reach the ports, and Dask runs what it is sent.

        pains 19, 20: a pool grows to what is asked, and keeps its nodes as long as a driver asks.
        """
        folder = opened(site, self.role(kind="pool", nodes=2))
        other = LeaseFolder(site / "other")
        other.path.mkdir()
        make_keys(other)
        with Fleet.open(folder) as fleet:
            fleet.nodes(1, START_TIMEOUT_S)
            ours = [
                each for each in processes_of(folder) if process_name(each) != "srun"
            ]  # has munge
            found = doors(ours) - {dashboard_of(folder)}
            assert len(found) == self.num_doors
            pages = pages_of(folder)
            for door in found:
                if door.port != urlsplit(pages.url).port:  # whose server waits for a question
                    assert knock(door, key_of(folder)) == "open"
                assert knock(door, no_key()) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
                assert knock(door, key_of(other)) == "TLSV1_ALERT_UNKNOWN_CA"
            for page in ("status", "metrics", "static/js/bokeh.min.js"):
                with urllib.request.urlopen(pages.url + page, context=pages.key) as shown:
                    assert shown.status == 200, page
            beside = pages.url.replace(urlsplit(pages.url).path, "/status")
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(beside, context=pages.key)
            assert len(fleet.nodes(2, START_TIMEOUT_S)) == 2
            done = dict(fleet.map(fleet_functions.pid_of_slot, range(20)))
        assert sorted(done) == list(range(20))
        assert len(set(done.values())) == 2
        assert folder.tls.stat().st_mode & 0o777 == 0o700
        assert {each.stat().st_mode & 0o777 for each in folder.tls.iterdir()} == {0o600}
        assert_only_who_knows_its_link_sees_the_dashboard(folder)

    def test_closes_while_it_starts(self, site: Path) -> None:
        folder = start(site, self.role(nodes=2))
        lease_client.end(folder, grace_s=20, reason="changed our minds")
        assert LeaseFiles.read(folder).state(15) is LeaseState.CLOSED
        assert processes_of(folder) == []

    def test_stops_when_idle(self, site: Path) -> None:
        """pains 22: no machine is held for nothing."""
        folder = start(site, self.role(idle_stop=0.5))  # ready for so short a time only
        wait_for_state(folder, LeaseState.CLOSED, START_TIMEOUT_S)
        assert LeaseFiles.read(folder).why_ended == "no step ran for 0.5 s"
        wait_until(lambda: not processes_of(folder), GONE_WITHIN_S, "the lease's processes to end")

    def test_lifetime(self, site: Path) -> None:
        """pains 18, 22: the hard limit."""
        folder = start(site, self.role(lifetime=2))
        wait_for_state(folder, LeaseState.CLOSED, START_TIMEOUT_S)
        assert LeaseFiles.read(folder).why_ended == "its lifetime of 2 s is over"

    def test_ends_with_its_owner(self, site: Path) -> None:
        """pains 22: a killed client leaves nothing behind."""
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
            folder = start(site, self.role(), owner=ProcessIdentity.of(owner.pid))
            wait_for_state(folder, LeaseState.READY, START_TIMEOUT_S)
            owner.kill()
        wait_for_state(folder, LeaseState.CLOSED, GONE_WITHIN_S)
        assert "has gone" in LeaseFiles.read(folder).why_ended
        wait_until(lambda: not processes_of(folder), GONE_WITHIN_S, "the lease's processes to end")

    def test_ends_when_its_folder_is_removed(self, site: Path) -> None:
        """pains 22: who clears a site's folder by hand leaves no process behind."""
        folder = opened(site, self.role())
        shutil.rmtree(folder.path, ignore_errors=True)  # the host writes in it meanwhile
        wait_until(lambda: not processes_of(folder), GONE_WITHIN_S, "the lease's processes to end")
        assert not folder.closed.exists()

    def test_started_many_times_there_is_one_host_that_sigterm_closes(self, site: Path) -> None:
        """pains 6: finding comes before starting."""
        folder = SiteFolder(site).lease("demo-1")
        asked = site / "asked.json"
        write_record(asked, lease_spec(folder, self.role()))
        code = (
            "import sys; from pathlib import Path\n"
            "from headrace.clusters import lease_client\n"
            "from headrace.clusters.lease_records import LeaseSpec\n"
            "from headrace.files.layout import LeaseFolder\n"
            "spec = LeaseSpec.model_validate_json(Path(sys.argv[1]).read_bytes())\n"
            "lease_client.start(LeaseFolder(Path(sys.argv[2])), spec)\n"
        )
        command = [sys.executable, "-c", code, str(asked), str(folder.path)]
        callers = [subprocess.Popen(command) for _ in range(4)]
        assert [caller.wait(60) for caller in callers] == [0, 0, 0, 0]
        wait_for_state(folder, LeaseState.READY, START_TIMEOUT_S)
        assert len(hosts_of(folder)) == 1
        first = host_of(folder)
        second = [sys.executable, "-m", "headrace.clusters.host", str(folder.path)]
        assert subprocess.run(second, check=False, timeout=60).returncode == 0
        assert host_of(folder) == first
        assert LeaseFiles.read(folder).state(15) is LeaseState.READY
        first.terminate()
        wait_for_state(folder, LeaseState.CLOSED, GONE_WITHIN_S)
        assert "SIGTERM" in LeaseFiles.read(folder).why_ended
        wait_until(lambda: not processes_of(folder), GONE_WITHIN_S, "the lease's processes to end")

    def test_a_hung_host_is_ended_by_the_reaper(self, site: Path) -> None:
        """Pains 9."""
        folder = opened(site, self.role())
        host_of(folder).suspend()
        wait_until(
            lambda: LeaseFiles.read(folder).state(2) is LeaseState.LOST, 90, "the loss to be seen"
        )
        lease_client.end(folder, grace_s=0.5)
        assert processes_of(folder) == []

    def test_a_killed_worker_is_replaced(self, site: Path) -> None:
        folder = opened(site, self.role(nodes=1))
        with Fleet.open(folder) as fleet:
            assert_a_killed_worker_is_replaced(fleet)

    def test_a_host_that_breaks_says_why_in_words(self, site: Path) -> None:
        folder = SiteFolder(site).lease("demo-1")
        folder.path.mkdir(parents=True)
        folder.info.mkdir()  # nothing can be published
        (folder.info / "in-the-way").touch()
        lease_client.start(folder, lease_spec(folder, self.role()))
        wait_until(folder.closed.exists, START_TIMEOUT_S, "the host to give up")
        assert LeaseFiles.read(folder).state(15) is LeaseState.FAILED
        why = LeaseFiles.read(folder).why_ended
        assert "lease.json" in why
        assert "Traceback" not in why


class GangContract(BackendContract):
    """What gangs must do besides."""

    kind = "gang"

    def test_a_gang_is_all_or_nothing(self, site: Path) -> None:
        folder = start(site, self.role(nodes=2, start_timeout=1e-9))
        wait_for_state(folder, LeaseState.FAILED, START_TIMEOUT_S)
        assert "of 2 nodes joined within 1e-09 s" in LeaseFiles.read(folder).why_ended
        assert "start_timeout" in LeaseFiles.read(folder).why_ended
        wait_until(lambda: not processes_of(folder), GONE_WITHIN_S, "the lease's processes to end")

    def test_a_killed_worker_is_replaced(self, site: Path) -> None:
        """pains 18: also one that does not come back.

        On a busy machine Dask alone gives up and stays one worker short.
        """
        folder = opened(site, self.role(nodes=1))
        with Fleet.open(folder) as fleet:
            assert_a_killed_worker_is_replaced(fleet)
            (before,) = fleet.nodes(1, 1)
            pid = fleet.call(before, os.getpid)
            os.kill(pid, signal.SIGKILL)
            stop_a_worker_that_starts(fleet, folder, pid)
            (after,) = fleet.nodes(1, 60)
            assert fleet.on_nodes(fleet_functions.double, [(4,)], [after]) == [8]
            assert after.name == "node-0"

    def test_a_gang_is_open_with_all_its_nodes_and_kill_of_the_host_takes_everything_along(
        self, site: Path
    ) -> None:
        """pains 15, 22: one allocation of N nodes; workers, drivers and even processes that care
        for nobody go with the host.
        """
        role = self.role(nodes=2, threads_per_rank=3, env={"HEADRACE_COLOUR": "blue"})
        folder = opened(site, role)
        info = lease_client.info(folder)
        assert info.backend == self.backend
        assert info.nodes == 2
        assert info.host.is_alive
        assert folder.scheduler_file.exists()
        assert folder.path.stat().st_mode & 0o077 == 0
        with urllib.request.urlopen(info.dashboard_url, timeout=30) as page:
            assert page.status == 200
        with urllib.request.urlopen(urljoin(info.dashboard_url, "metrics"), timeout=30) as page:
            assert b"headrace_step_done" in page.read()  # among Dask's own
        with Fleet.open(folder) as fleet:
            nodes = fleet.nodes(2, timeout_s=1)
            assert [(node.name, node.index) for node in nodes] == [("node-0", 0), ("node-1", 1)]
            assert len({fleet.call(node, os.getpid) for node in nodes}) == 2
            assert fleet.call(nodes[0], os.getenv, "OMP_NUM_THREADS") == "3"
            assert fleet.call(nodes[1], os.getenv, "HEADRACE_COLOUR") == "blue"
            # it looks at all threads, which halts a worker on Python 3.11 for ever now and then
            assert not fleet.call(nodes[0], fleet_functions.is_profiled)
            for node in nodes:
                fleet.call(node, fleet_functions.leave_orphan, 600)
            submit_look(folder)
            assert len(processes_of(folder)) >= 6
            host_of(folder).kill()
            wait_until(
                lambda: not processes_of(folder), GONE_WITHIN_S, "the lease's processes to end"
            )
        assert LeaseFiles.read(folder).state(15) is LeaseState.LOST
        (leftover,) = leftovers(SiteFolder(site))
        assert "died" in leftover.why
        assert [each.folder for each in reap(SiteFolder(site))] == [folder]
        assert folder.closed.exists()
        assert leftovers(SiteFolder(site)) == ()

    def test_a_killed_driver_is_recorded_as_lost(self, site: Path) -> None:
        folder = opened(site, self.role())
        host_of(folder).suspend()
        step = submit_look(folder)
        recipe = SiteFolder(site).run("demo").recipe
        recipe.unlink()
        os.mkfifo(recipe)  # the driver waits as it begins: nobody writes to this pipe
        host_of(folder).resume()
        drivers = wait_until(lambda: drivers_of(step), 90, "the driver")
        drivers[0].kill()
        result = wait_until(lambda: mailbox.outcome(step), 90, "the outcome")
        assert result.state is StepState.LOST
        assert "signal 9" in str(result.failure)
        again = submit_look(folder, "again")
        result = wait_until(lambda: mailbox.outcome(again), 120, "the next step to end")
        assert result.state is StepState.SUCCEEDED


class TestLocalBackend(GangContract):
    backend = "local"
    num_doors = 3  # no nanny: its workers are forked

    @pytest.mark.parametrize("keep_warm", [300.0, 0.0])
    def test_a_worker_is_a_fork_of_what_the_host_is_where_that_is_kept(
        self, site: Path, keep_warm: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else of a program that the host starts. What a role tells ranks is no zygote's."""
        for name in THREADS:
            monkeypatch.delenv(name, raising=False)
        folder = opened(site, self.role(threads_per_rank=3, keep_warm=keep_warm))
        with Fleet.open(folder) as fleet:
            (node,) = fleet.nodes(1, START_TIMEOUT_S)
            server = psutil.Process(fleet.call(node, os.getppid))
            assert fleet.call(node, os.getenv, "OMP_NUM_THREADS") == "3"
        host = host_of(folder)
        assert server.ppid() == (host.ppid() if keep_warm else host.pid)
        assert [each.ppid() for each in workers_of(folder)] == [server.pid]


@pytest.mark.slow
class TestSlurmPool(BackendContract):
    backend = "slurm"
    kind = "pool"
    batch: ClassVar[dict[str, Any]] = {"interface": "lo", "poll": 0.2}

    @pytest.fixture(autouse=True)
    def queue(self, slurm: DevSlurm) -> DevSlurm:
        """The queue, empty again afterwards."""
        return slurm


def assert_a_killed_worker_is_replaced(fleet: Fleet) -> None:
    """Kill that of the only node; another one works under its name."""
    (before,) = fleet.nodes(1, START_TIMEOUT_S)
    os.kill(fleet.call(before, os.getpid), signal.SIGKILL)
    wait_until(lambda: fleet.nodes(1, 120)[0].address != before.address, 120, "a new worker")
    (after,) = fleet.nodes(1, 60)
    assert after.name == before.name
    assert fleet.on_nodes(fleet_functions.double, [(4,)], [after]) == [8]


def stop_a_worker_that_starts(fleet: Fleet, folder: LeaseFolder, pid: int) -> None:
    """Stop the one that comes after `pid` before it joins; kill those that were too fast."""

    def restarted() -> list[psutil.Process]:
        return [each for each in workers_of(folder) if each.pid != pid]

    while True:
        found = wait_until(restarted, 90, "the restart", poll_s=0.005)[0]
        found.suspend()
        if not fleet.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.workers)):
            return
        pid = found.pid
        found.kill()


def assert_only_who_knows_its_link_sees_the_dashboard(folder: LeaseFolder) -> None:
    info = lease_client.info(folder)
    assert info is not None
    door = dashboard_of(folder)
    secret = urlsplit(info.dashboard_url).path.split("/")[1]
    assert page_status(door, f"/{secret}/status") == 200
    for before in ("", "/", "/" + "0" * len(secret)):
        for page in PAGES:
            assert page_status(door, f"{before}/{page}") == 403, page
    assert folder.info.stat().st_mode & 0o077 == 0
    for process in processes_of(folder):
        assert secret not in " ".join(process.cmdline())
        assert secret not in " ".join(process.environ().values())


def processes_of(folder: LeaseFolder) -> list[psutil.Process]:
    return marked([folder])[str(folder.path.resolve())]


def dashboard_of(folder: LeaseFolder) -> Door:
    info = lease_client.info(folder)
    port = urlsplit(info.dashboard_url).port
    assert port is not None
    return Door("127.0.0.1", port)


def host_of(folder: LeaseFolder) -> psutil.Process:
    record = read_record(folder.host, HostRecord)
    return psutil.Process(record.process.pid)


def hosts_of(folder: LeaseFolder) -> list[psutil.Process]:
    found = [each for each in processes_of(folder) if process_name(each) != "guard"]
    return [each for each in found if "headrace.clusters.host" in _arguments(each)]


def workers_of(folder: LeaseFolder) -> list[psutil.Process]:
    found = [each for each in processes_of(folder) if each.is_running()]
    return [each for each in found if each.name().startswith("worker ")]


def _arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
