"""Findings of checks, and whether a queue can give what a job requests; pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum

from headrace.batch.commands import CommandResult
from headrace.batch.job_records import JobSpec
from headrace.errors import nearest
from headrace.record import Record

_LESS = "Ask for less: `nodes`, threads or ranks of the role; or name another queue."


class Grade(str, Enum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(Record):
    """Result of one check."""

    subject: str
    grade: Grade
    seen: str
    """What was found."""
    advice: str = ""
    """What to do about it; empty if the grade is `ok`."""


class Section(Record):
    """Findings about a recipe, or one part of a site."""

    part: str
    """Name of the recipe or role, or `site`."""
    findings: tuple[Finding, ...]

    @property
    def has_failed(self) -> bool:
        """Whether a finding is a failure."""
        return any(each.grade is Grade.FAIL for each in self.findings)


def ok(subject: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(subject=subject, grade=Grade.OK, seen=found)


def warn(subject: str, found: str, advice: str) -> Finding:
    """Return a finding that may cause problems, or could not be checked."""
    return Finding(subject=subject, grade=Grade.WARN, seen=found, advice=advice)


def fail(subject: str, found: str, advice: str) -> Finding:
    """Return a finding that keeps leases from working, or would end a run."""
    return Finding(subject=subject, grade=Grade.FAIL, seen=found, advice=advice)


def verdict(command: str, answer: CommandResult) -> Finding:
    """Return the batch system's judgement of a script, from its test command's answer."""
    if answer.code == 0:
        return ok(command, answer.words)
    advice = "Correct the role's `batch` settings; `headrace plan --dry-run` shows the script."
    return fail(command, answer.words, advice)


class QueueFacts(Record):
    """Settings of a queue, in terms that several batch systems share."""

    name: str
    refuses: str = ""
    """Why it refuses all jobs, in the batch system's words; empty if it accepts some."""
    holds: str = ""
    """Why jobs wait in it at present; empty if they do not."""
    limit_s: float | None = None
    """Longest time of a job, seconds; null if unlimited or unknown."""
    most_cpus: int | None = None
    """Most CPUs of a job; null if unlimited or unknown."""
    least_nodes: int = 1
    """Fewest nodes of a job."""
    most_nodes: int | None = None
    """Most nodes of a job; null if unlimited or unknown."""


def longest_s(limits_s: Iterable[float | None]) -> float | None:
    """Return the longest time of a job in some queues; None if one is unlimited, or none exists."""
    known = list(limits_s)
    return None if None in known else max((each for each in known if each), default=None)


def clock_s(text: str) -> float:
    """Return the seconds of a time: `2-00:00:00`, `48:00:00`, `30:00` or `3600`."""
    days, _, clock = text.rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    return int(days or 0) * 86400 + seconds


def moment(text: str, form: str) -> float | None:
    """Return a time that a queue reports, seconds since the epoch; None if it reports none."""
    with suppress(ValueError):
        return float(text)
    with suppress(ValueError):
        return time.mktime(time.strptime(text, form))
    return None


def hours(seconds: float | None) -> str:
    """Format a time for users; None means unlimited."""
    if seconds is None:
        return "no limit"
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds / 60:.3g} min"


def chosen(what: str, name: str | None, names: Sequence[str]) -> str | Finding:
    """Return the queue that a job goes to, or a finding if no queue has its name."""
    if name is None:
        advice = f"Write `partition` under `batch`. Valid: {', '.join(sorted(names))}."
        return fail(what, f"there is no default {what}", advice)
    if name in names:
        return name
    return fail(what, f"there is no {what} '{name}'", nearest(name, names))


def judge_time(name: str, limit_s: float | None, spec: JobSpec) -> Finding:
    """Compare a job's time limit with that of a queue."""
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
    """Compare a job with the queue it requests; for systems that report little about nodes."""
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
        found = f"the job asks for {spec.slots} CPUs, {name} gives a job {queue.most_cpus}"
        return fail("nodes", found, _LESS)
    if queue.most_nodes is not None and spec.nodes > queue.most_nodes:
        found = f"the job asks for {spec.nodes} nodes, {name} gives a job {queue.most_nodes}"
        return fail("nodes", found, _LESS)
    if spec.nodes < queue.least_nodes:
        found = f"{name} is for {queue.least_nodes} nodes and more, the job asks for {spec.nodes}"
        return fail("nodes", found, "Name another queue as `batch.partition`.")
    return ok("nodes", f"{spec.nodes} with {spec.cpus_per_node} CPUs are within {name}'s limits")
