"""What a look at a site found, and whether a queue can give what a job asks for; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from headrace.batch.commands import CommandResult
from headrace.batch.job_records import JobSpec
from headrace.errors import nearest
from headrace.record import Record

_LESS = "Ask for less: `nodes`, threads or ranks of the role; or name another queue."


class Grade(str, Enum):
    """How good it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Record):
    """One thing that was looked at."""

    subject: str
    grade: Grade
    seen: str
    advice: str = ""
    """What to do about it; empty when it is fine."""


def ok(subject: str, seen: str) -> Finding:
    """A thing that is fine."""
    return Finding(subject=subject, grade=Grade.OK, seen=seen)


def warn(subject: str, seen: str, advice: str) -> Finding:
    """A thing that may do harm, or could not be looked at."""
    return Finding(subject=subject, grade=Grade.WARN, seen=seen, advice=advice)


def fail(subject: str, seen: str, advice: str) -> Finding:
    """A thing that keeps leases from working."""
    return Finding(subject=subject, grade=Grade.FAIL, seen=seen, advice=advice)


def verdict(command: str, answer: CommandResult) -> Finding:
    """What a batch system says of a script that it is not to run."""
    if answer.code == 0:
        return ok(command, answer.words)
    advice = "Correct the role's `batch` settings; `headrace plan --dry-run` shows the script."
    return fail(command, answer.words, advice)


class QueueFacts(Record):
    """What a batch system tells of one of its queues, in terms that several share."""

    name: str
    refuses: str = ""
    """Why it takes no jobs, in the batch system's words; empty when it takes some."""
    holds: str = ""
    """Why jobs wait in it for now; empty when they do not."""
    limit_s: float | None = None
    """Longest time of a job, seconds; null for no limit, or one that is not told."""
    most_cpus: int | None = None
    """Most CPUs of a job; null for no limit, or one that is not told."""
    least_nodes: int = 1
    """Fewest nodes of a job."""
    most_nodes: int | None = None
    """Most nodes of a job; null for no limit, or one that is not told."""


def longest_s(limits_s: Iterable[float | None]) -> float | None:
    """Longest time of a job in some queues; None where one has no limit, or there is no queue."""
    known = list(limits_s)
    return None if None in known else max((each for each in known if each), default=None)


def clock_s(text: str) -> float:
    """Seconds of a time such as `2-00:00:00`, `48:00:00`, `30:00` or `3600`."""
    days, _, clock = text.rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    return int(days or 0) * 86400 + seconds


def hours(seconds: float | None) -> str:
    """A time for people; None for no limit."""
    if seconds is None:
        return "no limit"
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds / 60:.3g} min"


def chosen(what: str, name: str | None, names: Sequence[str]) -> str | Finding:
    """The queue that a job goes to; what is wrong when there is none of that name."""
    if name is None:
        advice = f"Write `partition` under `batch`. Valid: {', '.join(sorted(names))}."
        return fail(what, f"there is no default {what}", advice)
    if name in names:
        return name
    return fail(what, f"there is no {what} '{name}'", nearest(name, names))


def judge_time(name: str, limit_s: float | None, spec: JobSpec) -> Finding:
    """Whether a queue gives a job its time."""
    if limit_s is not None and spec.time_limit_s > limit_s:
        return fail(
            "time",
            f"the job asks for {hours(spec.time_limit_s)}, {name} gives {hours(limit_s)}",
            "Lower `lifetime` of the role, to a few minutes less than that.",
        )
    return ok("time", f"{hours(spec.time_limit_s)} of {hours(limit_s)}")


def judge_queue(
    asked: str | None, queues: Mapping[str, QueueFacts], spec: JobSpec
) -> Iterator[Finding]:
    """Whether the queue that is asked for takes a job; for systems that tell little of nodes."""
    name = chosen("queue", asked, tuple(queues))
    if isinstance(name, Finding):
        yield name
        return
    queue = queues[name]
    if queue.refuses:
        advice = "Name another queue as `batch.partition`, or ask the administrators."
        yield fail("queue", f"{name} takes no jobs: {queue.refuses}", advice)
    elif queue.holds:
        yield warn("queue", f"{name} starts no jobs: {queue.holds}", "They wait until it does.")
    else:
        yield ok("queue", name)
    yield judge_time(name, queue.limit_s, spec)
    yield _judge_size(queue, spec)


def _judge_size(queue: QueueFacts, spec: JobSpec) -> Finding:
    name = queue.name
    if queue.most_cpus is not None and spec.slots > queue.most_cpus:
        seen = f"the job asks for {spec.slots} CPUs, {name} gives a job {queue.most_cpus}"
        return fail("nodes", seen, _LESS)
    if queue.most_nodes is not None and spec.nodes > queue.most_nodes:
        seen = f"the job asks for {spec.nodes} nodes, {name} gives a job {queue.most_nodes}"
        return fail("nodes", seen, _LESS)
    if spec.nodes < queue.least_nodes:
        seen = f"{name} is for {queue.least_nodes} nodes and more, the job asks for {spec.nodes}"
        return fail("nodes", seen, "Name another queue as `batch.partition`.")
    return ok("nodes", f"{spec.nodes} with {spec.cpus_per_node} CPUs are within {name}'s limits")
