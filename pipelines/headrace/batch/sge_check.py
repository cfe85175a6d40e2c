"""A role of a site against the real Grid Engine: what is wrong, and what to do about it.

Sources: qsub(1) (`-w v`) and sge_pe(5) of Son of Grid Engine 8.1.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.batch.asking import QueueCheck, said
from headrace.batch.commands import Commands
from headrace.batch.findings import Finding, fail, ok, warn
from headrace.batch.jobs import JobSpec
from headrace.batch.queue_check import chosen, judge_queue
from headrace.batch.scripts import slots_of
from headrace.batch.sge import render
from headrace.batch.sge_queues import (
    ask,
    ask_names,
    ask_queue,
    environments_of,
    facts_of,
    is_one_queue,
    parse_fields,
)
from headrace.errors import nearest

_NO_BOOKS = "An ended job then counts as lost, whatever it died of; have the file shared."
_VALID = "Correct the role's `batch` settings; `headrace plan --dry-run` shows the script."


def _look(commands: Commands, spec: JobSpec) -> Iterator[Finding]:
    queues = ask_names(commands)
    yield _books(commands)
    environments: list[str] = []
    if is_one_queue(spec.partition):
        name = chosen(spec.partition, queues)
        if isinstance(name, Finding):
            yield name
            return
        queue = ask_queue(commands, name)
        yield from judge_queue(facts_of(queue), spec)
        environments = environments_of(queue)
    if spec.parallel_environment is not None:
        yield from _environment(commands, spec.parallel_environment, spec, environments)
    yield _verdict(commands, spec)


def judge_environment(
    pe: dict[str, str], spec: JobSpec, of_queue: Sequence[str]
) -> Iterator[Finding]:
    """Whether a parallel environment gives each node all its slots; pure.

    Args:
        pe: The answer of `qconf -sp`.
        spec: The job.
        of_queue: Environments of the job's queue; empty where it names none.
    """
    name, rule = pe["pe_name"], pe.get("allocation_rule", "")
    if of_queue and name not in of_queue:
        advice = f"It has {', '.join(of_queue)}; `qconf -spl` lists all."
        yield fail("environment", f"the queue {spec.partition} has no '{name}'", advice)
    elif int(pe.get("slots", "0")) < slots_of(spec):
        seen = f"{name} has {pe['slots']} slots, the job asks for {slots_of(spec)}"
        yield fail("environment", seen, "Ask for less, or name another.")
    elif spec.nodes > 1 and pe.get("control_slaves") != "TRUE":
        seen = f"{name} has `control_slaves FALSE`: nothing can be started on further nodes"
        yield fail("environment", seen, "Name another; `qconf -sp NAME` shows one.")
    elif not _gives_all_slots(rule, spec):
        seen = f"{name} has `allocation_rule {rule}`, the job needs {spec.cpus_per_node} a node"
        advice = f"Name one with `allocation_rule {spec.cpus_per_node}`, or the job may get others."
        grade = fail if rule.isdigit() or rule == "$pe_slots" else warn
        yield grade("environment", seen, advice)
    else:
        yield ok("environment", f"{name}: {rule}")


def _gives_all_slots(rule: str, spec: JobSpec) -> bool:
    return rule == str(spec.cpus_per_node) or (rule == "$pe_slots" and spec.nodes == 1)


def _environment(
    commands: Commands, name: str, spec: JobSpec, of_queue: Sequence[str]
) -> Iterator[Finding]:
    known = ask(commands, "-spl").split()
    if name not in known:
        yield fail("environment", f"there is none named '{name}'", nearest(name, known))
        return
    yield from judge_environment(parse_fields(ask(commands, "-sp", name)), spec, of_queue)


def _books(commands: Commands) -> Finding:
    answer = commands.run(("qacct", "-d", "1"))
    if answer.code != 0 and "No such file" in answer.error:
        return warn("accounting", said(answer.error), _NO_BOOKS)
    return ok("accounting", "qacct answers")


def _verdict(commands: Commands, spec: JobSpec) -> Finding:
    """Grid Engine's own judgement of the very script, were all nodes up and empty."""
    # the folder of a lease that is never made
    asked = spec.model_copy(update={"folder": "/"})
    answer = commands.run(("qsub", "-w", "v"), render(asked))
    told = said(answer.output if answer.code == 0 else answer.error)
    return ok("qsub -w v", told) if answer.code == 0 else fail("qsub -w v", told, _VALID)


CHECK = QueueCheck(
    programs=dict.fromkeys(("qsub", "qstat", "qacct", "qdel", "qconf"), ("-help",)),
    advice="Run headrace where the commands of Grid Engine are, and have them on PATH.",
    look=_look,
)
