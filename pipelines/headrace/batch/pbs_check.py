"""A role of a site against the real PBS: what is wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.batch.asking import QueueCheck
from headrace.batch.commands import Commands
from headrace.batch.findings import Finding, ok, warn
from headrace.batch.jobs import JobSpec
from headrace.batch.pbs_queues import ask_queues, ask_server, facts_of, queue_of
from headrace.batch.queue_check import chosen, judge_queue

_NO_HISTORY = (
    "An ended job then counts as lost, whatever it died of: ask the administrators for "
    "`job_history_enable`."
)


def _look(commands: Commands, spec: JobSpec) -> Iterator[Finding]:
    server = ask_server(commands)
    if server.get("job_history_enable") == "True":
        yield ok("accounting", "the server keeps a history")
    else:
        yield warn("accounting", "the server keeps no history of jobs", _NO_HISTORY)
    queues = ask_queues(commands)
    name = chosen(queue_of(spec.partition, server) or None, tuple(queues))
    if isinstance(name, Finding):
        yield name
    else:
        yield from judge_queue(facts_of(name, queues, server), spec)


CHECK = QueueCheck(
    programs=dict.fromkeys(("qsub", "qstat", "qselect", "qdel"), ("--version",)),
    advice="Run headrace where the commands of PBS are (a login node), and have them on PATH.",
    look=_look,
)
