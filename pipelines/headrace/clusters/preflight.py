"""The pre-flight: checks of each node of a gang before it joins, and why nodes did not come."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from headrace.batch.commands import answer_of
from headrace.batch.job_records import end_of
from headrace.clusters.containers import environment, in_container
from headrace.clusters.lease_records import SERVICE, BadNodes, Ending, LeaseSpec
from headrace.errors import LeaseError
from headrace.files import tiers
from headrace.files.atomic import is_there, read_record, write_record, write_text
from headrace.files.layout import LeaseFolder
from headrace.files.locks import locked_at_once
from headrace.files.machine import free_ports
from headrace.processes.working_folder import SAFE
from headrace.record import Record

logger = logging.getLogger(__name__)

MAX_SKEW_S = 5.0
"""Largest difference of clocks, seconds: with more, live leases would look lost."""

_NAMES = ("SLURMD_NODENAME", "HEADRACE_NODE")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_SMI_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 90.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_LOG_BYTES = 65_536
_OF_ANY_NODE = ("container", "tiers")
"""Pre-flight checks whose problem may be a mistake in the site; others concern the node."""

_TELLING = re.compile(
    r"No such file or directory|command not found|Permission denied|Exec format error"
    r"|cannot execute|No module named|Unable to locate a modulefile|module\(s\) are unknown"
    r"|(?:could|can)(?:'t| ?not) open"
)
_NOISE = re.compile(r"\bkill: \(")
_LEADER = re.compile(r"^.*?(?:error:|FATAL:|line \d+:)\s*")
_PROCESS = re.compile(r"\[\d+\]")


class Check(Record):
    """Result of one check on a node."""

    name: str
    problem: str = ""
    """What is wrong; empty if nothing is."""
    blames_node: bool = True
    """Whether a problem is the fault of this node, not of any of the nodes."""
    seconds: float


class NodeReport(Record):
    """Results of a node's checks of itself (`preflight/<index>.json`)."""

    node: str
    """Name of the node in the batch system."""
    index: int
    """Its index in the gang, from 0."""
    checks: tuple[Check, ...]
    at: float = Field(default_factory=time.time)
    """Time by the node's own clock, seconds since the epoch."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the node."""
        return tuple(f"{each.name}: {each.problem}" for each in self.checks if each.problem)

    @property
    def is_to_blame(self) -> bool:
        """Whether the node itself is at fault."""
        return any(each.problem and each.blames_node for each in self.checks)


def examine(folder: LeaseFolder, spec: LeaseSpec, index: int) -> NodeReport:
    """Check this node, and write the report.

    Side effects: makes the folders of the tiers; writes `preflight/<index>.json`.
    """
    checks_by_name: dict[str, Callable[[], str]] = {}
    if spec.role.batch.preflight != "off":
        checks_by_name = {
            "GPUs": lambda: missing_gpus(spec.role.batch.gpus_per_node),
            "tiers": lambda: _tiers(spec),
            "locks": lambda: _locks(folder, index),
            "container": lambda: _container(folder, spec),
        }
    checks = tuple(_check(name, check) for name, check in checks_by_name.items())
    is_good = not any(each.problem for each in checks)
    if spec.role.batch.preflight == "full" and is_good and _all_good(folder, spec, index):
        together = _check("all-reduce", lambda: _all_reduce(folder, spec, index))
        checks = (*checks, together.model_copy(update={"blames_node": False}))
    report = NodeReport(node=node_name(), index=index, checks=checks)
    write_record(report_file(folder, index), report)
    for problem in report.problems:
        logger.error("Pre-flight of node %d, %s: %s", index, report.node, problem)
    return report


def report_file(folder: LeaseFolder, index: int) -> Path:
    """Return the report file of the node with an index."""
    return folder.preflight / f"{index}.json"


def reports(folder: LeaseFolder, known: Sequence[NodeReport] = ()) -> tuple[NodeReport, ...]:
    """Return the nodes' reports so far, in the order of their indices."""
    found = {report.index: report for report in known}
    for file in folder.preflight.glob("*.json"):
        if int(file.stem) not in found:
            report = read_record(file, NodeReport)
            found |= {} if report is None else {report.index: report}
    return tuple(found[index] for index in sorted(found))


def pauses_s() -> Iterator[float]:
    """Yield pauses between reads of the folder with all reports, which may be slow; seconds."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)


def require_good(folder: LeaseFolder, found: Iterable[NodeReport]) -> None:
    """Raise for bad nodes, and record those at fault, so that the next lease avoids them.

    Raises:
        LeaseError: Nodes are bad; each is named with its problems.
    """
    bad = [each for each in found if each.problems]
    if not bad:
        return
    why = "; ".join(f"{each.node}: {', '.join(each.problems)}" for each in bad)
    blamed = tuple(each.node for each in bad if each.is_to_blame)
    if blamed:
        write_record(folder.bad_nodes, BadNodes(nodes=blamed, why=why))
    raise LeaseError(
        f"The pre-flight found {len(bad)} bad node{'s' if len(bad) > 1 else ''}: {why}",
        "Tell the administrators. `batch.exclude` of the role avoids nodes, `batch.preflight: off` "
        "skips all checks.",
    )


def skewed(report: NodeReport, skew_s: float) -> NodeReport:
    """Return a report with the difference of the node's clock, which the host has measured."""
    problem = ""
    if abs(skew_s) > MAX_SKEW_S:
        way = "behind" if skew_s > 0 else "ahead of"
        problem = f"{abs(skew_s):.0f} s {way} that of the first node"
    clock = Check(name="clock", problem=problem, seconds=0.0)
    return report.model_copy(update={"checks": (*report.checks, clock)})


def node_name() -> str:
    """Return the name of this node in the batch system."""
    return next((os.environ[name] for name in _NAMES if name in os.environ), socket.gethostname())


def offer_meeting(folder: LeaseFolder, address: str) -> None:
    """Write the address at which the nodes meet for the all-reduce: a free port of the first."""
    write_text(_meeting(folder), f"{address}:{free_ports(address, 0)[0]}")


def _meeting(folder: LeaseFolder) -> Path:
    return folder.preflight / "meeting"


def _check(name: str, check: Callable[[], str]) -> Check:
    started_s = time.monotonic()
    problem = check()
    return Check(name=name, problem=problem, seconds=time.monotonic() - started_s)


def _tiers(spec: LeaseSpec) -> str:
    """Return unusable tiers; a full one counts only if all others are full too."""
    problems, full = [], []
    for tier in spec.tiers:
        path = tiers.folder_of(tier)
        problem = tiers.prepare(path)
        if problem:
            problems.append(f"{tier.name}: {path} {problem}")
        elif tiers.measure(tier, 0).usable_bytes == 0:
            full.append(f"{tier.name}: {path} has no room")
    if not problems and len(full) == len(spec.tiers):
        problems = full
    return "; ".join(problems)


def _locks(folder: LeaseFolder, index: int) -> str:
    """Check that the lock that the host holds on the lease is held here too."""
    if index == 0:
        return ""
    try:
        handle = locked_at_once(folder.lock)
    except OSError as error:
        return f"{folder.lock} cannot be locked: {error.strerror or error}"
    if handle is None:
        return ""
    os.close(handle)
    return f"the lock that the first node holds on {folder.lock} does not hold here"


def _container(folder: LeaseFolder, spec: LeaseSpec) -> str:
    if spec.role.batch.container is None:
        return ""
    return problem_of(in_container(folder, spec, ("-c", f"{SAFE}import headrace, distributed")))


def _all_good(folder: LeaseFolder, spec: LeaseSpec, index: int) -> bool:
    """Wait for all nodes; return False if the host fails, as if one of them is bad."""
    write_text(folder.preflight / f"{index}.ready", "")
    for pause_s in pauses_s():
        if len(list(folder.preflight.glob("*.ready"))) >= spec.role.nodes:
            break
        if is_there(folder.close) or is_there(folder.closed):
            return False
        time.sleep(pause_s)
    return True


def _all_reduce(folder: LeaseFolder, spec: LeaseSpec, index: int) -> str:
    """Sum numbers over all nodes, as ranks do with their gradients."""
    role = spec.role
    meeting = [_meeting(folder).read_text().strip(), str(index), str(role.nodes)]
    # torch takes seconds to load, and belongs to layers above this one
    arguments = ("-m", "headrace.training.rendezvous", *meeting, str(role.batch.gpus_per_node))
    return problem_of(in_container(folder, spec, arguments))


def problem_of(command: Sequence[str], timeout_s: float = _START_TIMEOUT_S) -> str:
    """Run a command that may be in a container; return why it failed, or an empty string."""
    answer = answer_of(command, timeout_s, environment())
    if answer.code is None:
        return answer.error
    last = "; ".join(answer.error.strip().splitlines()[-2:])
    return f"it ended with code {answer.code}: {last}" if answer.code else ""


def missing_gpus(wanted: int) -> str:
    """Return what is wrong with this node's accelerators, for a job that needs `wanted`."""
    if wanted == 0:
        return ""
    given = given_gpus(os.environ)
    if given is not None and given < wanted:
        return f"the job was given {given} of {wanted}"
    if shutil.which("nvidia-smi") is not None:
        return _missing_in_nvidia_smi(wanted)
    files = list(Path("/dev").glob("nvidia[0-9]*")) or list(Path("/dev/dri").glob("renderD*"))
    found = wanted if given is not None else len(files)
    return "" if found >= wanted else f"{found} of {wanted} have a device file"


def given_gpus(environment: Mapping[str, str]) -> int | None:
    """Return the accelerators that the batch system gave to the job; None if unknown."""
    for name in _VARIABLES:
        if name in environment:
            return len([part for part in environment[name].split(",") if part.strip()])
    return None


def listed_gpus(text: str) -> int:
    """Return the number of accelerators in the output of `nvidia-smi --list-gpus`."""
    return sum(1 for line in text.splitlines() if line.startswith("GPU "))


def _missing_in_nvidia_smi(wanted: int) -> str:
    answer = answer_of(("nvidia-smi", "--list-gpus"), _SMI_TIMEOUT_S)
    if answer.code is None:
        return answer.error
    if answer.code:
        return f"nvidia-smi ended with code {answer.code}: {answer.words}"
    found = listed_gpus(answer.output)
    return "" if found >= wanted else f"nvidia-smi shows {found} of {wanted}"


class Symptom(Record):
    """Why a lease's nodes did not come.

    A failure that is the same on a second node, or in a second lease, is not the nodes' fault: a
    container image, an interpreter or a module is missing.
    """

    words: str
    """The messages, without what differs from node to node."""
    num_nodes: int
    """Number of its nodes with these messages."""


def symptom_of(folder: LeaseFolder) -> Symptom | None:
    """Return why a lease's nodes did not come; None if they came, or it is unknown."""
    if is_there(folder.info):
        return None
    found = [
        f"{check.name}: {_plain(check.problem)}"
        for report in reports(folder)
        for check in report.checks
        if check.problem and check.name in _OF_ANY_NODE
    ]
    ending = read_record(folder.closed, Ending)
    if ending is not None and ending.reason.startswith(SERVICE):
        found.append(ending.reason.partition(", at port ")[0].partition("\n")[0])
    elif not found and not is_there(folder.host):
        found = telling_lines(end_of(folder.log, _LOG_BYTES))
    return most_common(found)


def telling_lines(log: str) -> list[str]:
    """Return log lines about missing files or programs, without what differs between nodes."""
    whole = log.replace("module(s) are unknown:\n", "module(s) are unknown: ")  # as Lmod writes
    lines = filter(_TELLING.search, whole.splitlines())
    return [_plain(_LEADER.sub("", line)) for line in lines if not _NOISE.search(line)]


def most_common(found: Iterable[str]) -> Symptom | None:
    """Return the message of most nodes; the first of several."""
    counted = Counter(found).most_common(1)
    return Symptom(words=counted[0][0], num_nodes=counted[0][1]) if counted else None


def _plain(text: str) -> str:
    return _PROCESS.sub("", text).strip()
