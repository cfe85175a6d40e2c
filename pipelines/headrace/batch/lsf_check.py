"""A role of a site against the real LSF: what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.batch.asking import QueueCheck
from headrace.batch.commands import Commands
from headrace.batch.findings import Finding
from headrace.batch.jobs import JobSpec
from headrace.batch.lsf_queues import ask_queues, queues_of
from headrace.batch.queue_check import chosen, judge_queue


def _look(commands: Commands, spec: JobSpec) -> Iterator[Finding]:
    queues = ask_queues(commands)
    for each in (*queues_of(commands, spec.partition),) or (None,):
        name = chosen(each, tuple(queues))
        if isinstance(name, Finding):
            yield name
        else:
            yield from judge_queue(queues[name], spec)


CHECK = QueueCheck(
    programs=dict.fromkeys(("bsub", "bjobs", "bkill", "bacct", "bqueues"), ("-V",)),
    advice="Run headrace where the commands of LSF are, and have them on PATH.",
    look=_look,
)
