"""A small real Grid Engine of four hosts on this machine, for tests.

Each host is a network namespace with an address and a host name of its own, in which an execution
daemon runs. All files lie in one folder; the machine's own Grid Engine is not touched.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from slurm_dev_daemons import Daemon, Daemons

from headrace.batch.commands import LocalCommands
from headrace.processes.identity import die_with_parent
from headrace_queues.sge import Sge
from support.leftovers import unmarked
from support.net_hosts import (
    add_bridge,
    add_namespace,
    connect,
    kill_all_in,
    namespaces_problem,
)
from support.waiting import wait_until

SLOTS = 4
"""Slots, and GPUs as a plain number, of each host."""

_HOSTS = {f"node{index}": index for index in range(1, 5)}
_MASTER = "master"
_ADDRESSES = {_MASTER: 100, **_HOSTS}
_OUTSIDE = 254
_NETWORK = f"10.68.{os.getpid() % 250}"
_HERE = socket.gethostname()
_PORTS = {"SGE_QMASTER_PORT": "6444", "SGE_EXECD_PORT": "6445"}
_BARE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "SGE_ND": "1"}
_FOLDERS = ("commands", "db", "spool", "qmaster/job_scripts")
_PROGRAMS = Path("/usr/lib/gridengine")
_DEFAULTS = Path("/usr/share/gridengine")
_START_S = 60.0
_LEAVING_S = 60.0

_BOOTSTRAP = """\
admin_user         root
default_domain     none
ignore_fqdn        true
spooling_method    berkeleydb
spooling_lib       libspoolb
spooling_params    {folder}/db
binary_path        {programs}
qmaster_spool_dir  {folder}/qmaster
security_mode      none
listener_threads   2
worker_threads     2
scheduler_threads  1
"""
_CONFIGURATION = {
    "min_uid": "0",
    "min_gid": "0",
    "login_shells": "none",
    "load_report_time": "00:00:01",
    "max_unheard": "00:00:05",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false "
    "sharelog=00:00:00",
}
"""What differs from Debian's: jobs of root, without its profile, and short pauses."""

_SCHEDULER = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
_QUEUES = {
    "all.q": {"pe_list": "make mpi mpi4", "h_rt": "48:00:00,[node4=INFINITY]"},
    "gpu.q": {"pe_list": "make", "h_rt": "INFINITY"},
}
_EVERY_QUEUE = {"hostlist": " ".join(_HOSTS), "slots": str(SLOTS), "load_thresholds": "NONE",
                "shell": "/bin/bash"}  # fmt: skip
_OF_SITES = {"control_slaves": "TRUE", "job_is_first_task": "TRUE", "accounting_summary": "FALSE"}
_ENVIRONMENTS = {
    "mpi": {**_OF_SITES, "allocation_rule": "1"},
    "mpi4": {**_OF_SITES, "allocation_rule": "4"},
    "make": {"allocation_rule": "$round_robin", "control_slaves": "FALSE"},
}


@dataclass(frozen=True)
class GridEngine:
    """A running Grid Engine: `all.q` of 48 hours, `gpu.q` without a limit, three environments."""

    folder: Path
    """Its `SGE_ROOT`."""
    daemons: Daemons
    interface: str
    """Network interface of this machine and of the hosts that connects them."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment of its commands."""
        return {**self._place, "PATH": f"{self.folder}/commands{os.pathsep}{os.environ['PATH']}"}

    @property
    def _place(self) -> dict[str, str]:
        return {"SGE_ROOT": str(self.folder), "SGE_CELL": "cell", **_PORTS}

    @property
    def commands(self) -> LocalCommands:
        """Its commands."""
        return LocalCommands(self.environment)

    @property
    def system(self) -> Sge:
        """Headrace's view of it."""
        return Sge(self.commands)

    def run(self, *command: str) -> str:
        """Return the output of one of its commands."""
        answer = self.commands.run(command)
        assert answer.code == 0, answer
        return answer.output

    def queue(self) -> list[str]:
        """Return the ids of the jobs that wait or run."""
        return [line.split()[0] for line in self.run("qstat", "-u", "*").splitlines()[2:]]

    def start_host(self, host: str) -> Daemon:
        """Start the daemon of a host."""
        program = str(_PROGRAMS / ("sge_qmaster" if host == _MASTER else "sge_execd"))
        inside = f'hostname {host} && {self._with_hosts} && exec env -i {self._bare} "$0"'
        enter = ("ip", "netns", "exec", self._namespace(host), "unshare", "--uts")
        return self.daemons.start(host, (*enter, "sh", "-c", inside, program), {})

    def lose_power(self, host: str) -> None:
        """Kill all processes of a host."""
        kill_all_in(self._namespace(host))
        self.daemons.kill(host)

    def heal(self) -> None:
        """Start the daemons that ended, and wait until all hosts report."""
        alive = {each.name for each in self.daemons.all if each.is_alive}
        with unmarked():
            for host in _HOSTS.keys() - alive:
                self.start_host(host)
        wait_until(self._is_whole, _START_S, "all hosts to report", poll_s=0.2)

    def _is_whole(self) -> bool:
        lines = self.run("qstat", "-f").splitlines()
        instances = [line.split() for line in lines if "@" in line]
        return len(instances) == len(_HOSTS) * len(_QUEUES) and all(
            len(words) == 5
            for words in instances  # a state would be the sixth
        )

    def up(self) -> None:
        """Start its daemons in an empty folder."""
        self._write_files()
        self.daemons.wait(self.start_host(_MASTER), self._answers, _START_S)
        gpu = "gpu gpu INT <= YES YES 0 0\n"
        self._load("-Mc", "complexes", self.run("qconf", "-sc") + gpu, {})
        host = re.sub(  # these are reported, not set
            r"(?m)^(load_values|processors)\s.*\n", "", self.run("qconf", "-se", "template")
        )
        for name, index in _HOSTS.items():
            changes = {"hostname": name, "complex_values": f"gpu={SLOTS}"}
            self._load("-Ae", name, host, changes)
            # the daemons share one table of processes: each marks its jobs' by own groups
            self._load("-Aconf", name, f"gid_range {65000 + index * 100}-{65099 + index * 100}", {})
        environment = (_DEFAULTS / "util" / "resources" / "pe" / "make").read_text()
        for name, changes in _ENVIRONMENTS.items():
            self._load("-Ap", name, environment, {"pe_name": name, **changes})
        queue = self.run("qconf", "-sq")
        for name, changes in _QUEUES.items():
            self._load("-Aq", name, queue, {"qname": name, **_EVERY_QUEUE, **changes})
        self._load("-Msconf", "scheduler", self.run("qconf", "-ssconf"), _SCHEDULER)
        self.heal()

    def down(self) -> None:
        """End all jobs and daemons."""
        for host in _ADDRESSES:
            self.lose_power(host)
        self.daemons.stop()

    def _answers(self) -> bool:
        return self.commands.run(("qconf", "-sm")).code == 0

    @property
    def _bare(self) -> str:
        """Environment of a daemon, which its jobs inherit; with SGE_ND, it is no background one."""
        return " ".join(f"{key}={value}" for key, value in (self._place | _BARE).items())

    @property
    def _with_hosts(self) -> str:
        return f"mount --bind {self.folder}/hosts /etc/hosts"

    def _namespace(self, host: str) -> str:
        return f"{self.interface}-{_ADDRESSES[host]}"

    def _write_files(self) -> None:
        common = self.folder / "cell" / "common"
        for place in (common, *(self.folder / name for name in _FOLDERS)):
            place.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (self.folder / name).symlink_to(Path("/var/lib/gridengine") / name)
        (common / "bootstrap").write_text(_BOOTSTRAP.format(folder=self.folder, programs=_PROGRAMS))
        (common / "act_qmaster").write_text(f"{_MASTER}\n")
        addresses = {_HERE: _OUTSIDE, **_ADDRESSES}
        table = "".join(f"{_NETWORK}.{last} {name}\n" for name, last in addresses.items())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{table}")
        for name in Sge.programs:
            text = f'{self._with_hosts} && exec /usr/bin/{name} "$@"'
            program = self.folder / "commands" / name
            program.write_text(
                f'#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(text)} sh "$@"\n'
            )
            program.chmod(0o755)
        spool = {"execd_spool_dir": f"{self.folder}/spool"}
        defaults = (_DEFAULTS / "default-configuration").read_text()
        file = self._write("configuration", defaults, _CONFIGURATION | spool)
        self._program("spoolinit", "berkeleydb", "libspoolb", f"{self.folder}/db", "init")
        self._program("spooldefaults", "configuration", str(file))
        for kind, source in (("complexes", "centry"), ("usersets", "usersets")):
            self._program("spooldefaults", kind, str(_DEFAULTS / "util" / "resources" / source))
        self._program("spooldefaults", "managers", "root")
        (self.folder / "known").mkdir()
        for name in (_HERE, *_HOSTS):
            self._write(f"known/{name}", f"hostname {name}", {})
        for kind in ("adminhosts", "submithosts"):
            self._program("spooldefaults", kind, str(self.folder / "known"))

    def _program(self, name: str, *arguments: str) -> None:
        answer = self.commands.run((str(_PROGRAMS / name), *arguments))
        assert answer.code == 0, answer

    def _load(self, option: str, name: str, text: str, changes: Mapping[str, str]) -> None:
        self.run("qconf", option, str(self._write(name, text, changes)))

    def _write(self, name: str, text: str, changes: Mapping[str, str]) -> Path:
        """Write a configuration with changed values; return its file."""
        for key, value in changes.items():
            text, num = re.subn(rf"(?m)^{key}\s.*$", f"{key} {value}", text)
            assert num == 1, (key, text)
        file = self.folder / name
        file.write_text(f"{text.strip()}\n")
        return file


def why_not() -> str:
    """Why this machine cannot run it; empty if it can."""
    if not all((_PROGRAMS / name).exists() for name in ("sge_qmaster", "sge_execd", "qsub")):
        return "needs the Debian packages gridengine-master, gridengine-exec, gridengine-client"
    return namespaces_problem()


@pytest.fixture(scope="session")
def dev_grid_engine() -> Iterator[GridEngine]:
    """A Grid Engine of four hosts; its daemons end with the tests."""
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="headrace-sge-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder)
        interface = f"ge{os.getpid()}"
        add_bridge(interface, stack, f"{_NETWORK}.{_OUTSIDE}")
        for last in _ADDRESSES.values():
            space = add_namespace(interface, last, stack)
            connect(space, interface, last, interface, f"{_NETWORK}.{last}")
        daemons = Daemons(folder, before=lambda: die_with_parent(signal.SIGKILL))
        made = GridEngine(folder, daemons, interface)
        stack.callback(made.down)
        made.up()
        yield made


@pytest.fixture
def grid_engine(
    dev_grid_engine: GridEngine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GridEngine]:
    """The Grid Engine, named by the environment; the test leaves no job in its queue."""
    for name, value in dev_grid_engine.environment.items():
        monkeypatch.setenv(name, value)
    yield dev_grid_engine
    try:  # a job that was cancelled still leaves its hosts for a moment
        wait_until(lambda: not dev_grid_engine.queue(), _LEAVING_S, "an empty queue", poll_s=0.5)
    finally:
        if left := dev_grid_engine.queue():
            dev_grid_engine.run("qdel", "-f", *left)
