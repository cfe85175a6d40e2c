"""A control machine, a node and a server of NFS 4.2, disturbed; `make real-nfs` (some 30 minutes).

In the order of the file; the last lines are the table.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator

import pytest

from support.guests import USER, missing
from support.nfs import SHARED, NfsMachines, nfs_machines, program
from support.waiting import wait_until

_LONG_S = 600.0
_SMALL = (
    "pack_role=gpu", "evaluate=null", "trainer.max_epochs=1", "trainer.checkpoint_every_steps=3",
)  # fmt: skip
"""19 steps."""


class Job:
    """A command of headrace that runs on the control machine."""

    def __init__(self, machines: NfsMachines, name: str, *words: str, home: str = "home") -> None:
        self._machines, self._log, self._home = machines, f"{name}.log", home
        self._began = time.monotonic()
        command = machines.command(*words, "--site", "nfs.yaml", home=home)
        machines.control.start(f"{command}; echo exit: $?", self._log)
        self.run_id = wait_until(lambda: self._found("run: (.*)"), _LONG_S, f"{name} to begin")

    @property
    def folder(self) -> str:
        """Folder of its run, as the server sees it."""
        return f"/srv/export/site/runs/{self.run_id}"

    def wait_for_step(self, step: int) -> None:
        """Wait until training has a checkpoint of this step or a later one."""
        look = f"ls {self.folder}/checkpoints"

        def reached() -> bool:
            assert not self._found("exit: (.*)"), self.output()
            names = self._machines.server.run(look, check=False)
            return max(map(int, re.findall(r"step-(\d+)", names)), default=0) >= step

        wait_until(reached, _LONG_S, f"step {step}", poll_s=0.5)

    def resume(self) -> None:
        """Go on with it, on a control machine that has booted again."""
        command = self._machines.command("resume", self.run_id, home=self._home)
        self._machines.control.run(f"rm {self._log}")
        self._machines.control.start(f"{command}; echo exit: $?", self._log)

    def wait_end(self) -> float:
        """Wait until it has succeeded; return the seconds since it began."""
        code = wait_until(lambda: self._found("exit: (.*)"), 2 * _LONG_S, "its end", poll_s=1)
        assert code == "0", self.output()
        return time.monotonic() - self._began

    def weights(self) -> str:
        """Hash of its weights, as the ledger has it."""
        return self._ledger("run(RUN).outputs['train']['weights_xxh3']")

    def attempts(self) -> str:
        """States of its attempts to train."""
        return self._ledger("attempts(RUN, 'train')", "','.join(a.state.value for a in found)")

    def output(self) -> str:
        """Print of the command."""
        return self._machines.control.run(f"cat {self._log} 2>/dev/null", check=False)

    def _ledger(self, question: str, shown: str = "found") -> str:
        code = (
            "from headrace.ledger.ledger import open_ledger\n"
            f"found = open_ledger().{question.replace('RUN', repr(self.run_id))}\nprint({shown})"
        )
        return self._machines.python(self._machines.control, code)[0]

    def _found(self, pattern: str) -> str:
        found = re.search(f"^{pattern}$", self.output(), re.MULTILINE)
        return found[1] if found else ""


@pytest.fixture(scope="module")
def machines() -> Iterator[NfsMachines]:
    if problem := missing():
        pytest.fail(problem)
    with nfs_machines() as made:
        made.prepare()
        made.control.run(made.command("example", "digits"))
        yield made


@pytest.fixture(scope="module")
def undisturbed(machines: NfsMachines, table: list[tuple[str, str]]) -> str:
    """Hash of the weights of the run that nothing disturbs."""
    job = Job(machines, "whole", "run", "digits", *_SMALL, "evaluate.split=test")
    took = job.wait_end()
    shown = job.output()
    assert re.search(r"evaluate *│ succeeded", shown), shown
    table.append(("pack → stage → train → evaluate, two machines", f"{took:.0f} s"))
    return job.weights()


def test_a_whole_run(undisturbed: str) -> None:
    assert undisturbed


def _node_loses_power(machines: NfsMachines, job: Job) -> None:
    machines.node.lose_power()
    machines.node.boot()


def _control_loses_power(machines: NfsMachines, job: Job) -> None:
    machines.control.lose_power()
    machines.control.boot()
    job.resume()


def _server_stands_still(machines: NfsMachines, job: Job) -> None:
    machines.stop_server()
    time.sleep(20)
    machines.start_server()


def _server_loses_power(machines: NfsMachines, job: Job) -> None:
    machines.server.lose_power()
    machines.server.boot()


@pytest.mark.parametrize(
    "disturb",
    [_node_loses_power, _control_loses_power, _server_stands_still, _server_loses_power],
)
def test_weights_after_a_disturbance(
    machines: NfsMachines, undisturbed: str, table: list[tuple[str, str]],
    disturb: Callable[[NfsMachines, Job], None],
) -> None:  # fmt: skip
    job = Job(machines, disturb.__name__, "run", "digits", *_SMALL)
    job.wait_for_step(6)
    disturb(machines, job)
    took = job.wait_end()
    what = disturb.__name__.strip("_").replace("_", " ")
    table.append((what, f"same weights after {took:.0f} s; attempts: {job.attempts()}"))
    assert job.weights() == undisturbed


def test_a_suite_whose_node_loses_power(
    machines: NfsMachines, table: list[tuple[str, str]]
) -> None:
    """Home, run folder, mailbox and event log are on the mount; only the ledger is not."""
    job = Job(machines, "suite", "sweep", "digits", "seed=1,2", *_SMALL, "suite.max_running=1")
    journal = f"cat {job.folder}/trials.jsonl 2>/dev/null"
    wait_until(
        lambda: '"ended"' in machines.server.run(journal, check=False), _LONG_S, "a trial to end",
        poll_s=0.5,
    )  # fmt: skip
    machines.node.lose_power()
    machines.node.boot()
    took = job.wait_end()
    lines = machines.server.run(journal).splitlines()
    assert all(line.startswith("{") and line.endswith("}") for line in lines)
    ended = [line for line in lines if '"ended"' in line]
    table.append(("suite of 2 trials, node lost in the second", f"{took:.0f} s, {len(ended)} ends"))
    assert len(ended) == 2, lines


_WRITE = """
import time
from pathlib import Path
for number in range(NUMBER):
    time.sleep(3 + 0.37 * number)
    Path(f"/mnt/seen/{number}").write_text(repr(time.time()))
"""

_SEE = """
import time
from pathlib import Path
from headrace.files.atomic import is_there
look = LOOK
for number in range(NUMBER):
    path = Path(f"/mnt/seen/{number}")
    while not look(path):
        time.sleep(0.1)
    at = time.time()
    print(at - float(path.read_text()))
"""


@pytest.mark.parametrize(
    ("options", "look"),
    [
        ("", "is_there"), (",noac", "is_there"), (",actimeo=60", "is_there"),
        ("", "Path.exists"), (",noac", "Path.exists"), (",lookupcache=positive", "Path.exists"),
    ],
)  # fmt: skip
def test_when_a_file_of_the_other_client_is_seen(
    machines: NfsMachines, table: list[tuple[str, str]], options: str, look: str
) -> None:
    number = "6" if look == "is_there" else "3"
    machines.mount(options)
    machines.server.run("rm -rf /srv/export/seen; mkdir -m 777 /srv/export/seen")
    machines.node.start(program(_WRITE.replace("NUMBER", number)), "write.log")
    code = _SEE.replace("NUMBER", number).replace("LOOK", look)
    _, *delays = map(float, machines.python(machines.control, code))
    shown = f"median {statistics.median(delays):.2f} s, most {max(delays):.2f} s of {len(delays)}"
    table.append((f"`{look}`, mounted with `{options.strip(',') or 'defaults'}`", shown))
    machines.mount()


def test_root_is_squashed(machines: NfsMachines, table: list[tuple[str, str]]) -> None:
    """Root is told what is wrong; an ordinary user works."""
    machines.mount(squash="root_squash")
    shown = machines.control.run(
        machines.command("site", "check", "--site", "nfs.yaml"), check=False
    )
    table.append(("root_squash, as root", shown.strip().replace("\n", " ")))
    machines.server.run(f"rm -rf {SHARED.replace('/mnt', '/srv/export')}")
    machines.prepare(USER)
    shown = machines.control.run(
        machines.command("site", "check", "--site", "nfs.yaml"), user=USER, check=False
    )
    assert "fail" not in shown, shown
    table.append(("root_squash, as an ordinary user", shown.strip().replace("\n", " ")))
