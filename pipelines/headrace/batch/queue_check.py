"""Whether a queue can give what a job asks for; pure. For the systems that tell little of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.batch.asking import hours
from headrace.batch.findings import Finding, fail, ok, warn
from headrace.batch.jobs import JobSpec
from headrace.batch.queue_facts import QueueFacts
from headrace.batch.scripts import slots_of
from headrace.errors import nearest

_LOWER = "Lower `lifetime` of the role, to a few minutes less than that."
_LESS = "Ask for less: `nodes`, threads or ranks of the role; or name another queue."


def chosen(name: str | None, names: Sequence[str]) -> str | Finding:
    """The queue that a job goes to; what is wrong when there is none of that name.

    Args:
        name: The queue; None where the system has no default one.
        names: All queues.
    """
    if name is None:
        advice = f"Write `partition` under `batch`. Valid: {', '.join(sorted(names))}."
        return fail("queue", "there is no default queue", advice)
    if name in names:
        return name
    return fail("queue", f"there is no queue '{name}'", nearest(name, names))


def judge_queue(queue: QueueFacts, spec: JobSpec) -> Iterator[Finding]:
    """Whether a queue takes a job.

    Args:
        queue: The queue.
        spec: The job.
    """
    name = queue.name
    if queue.refuses:
        advice = "Name another queue as `batch.partition`, or ask the administrators."
        yield fail("queue", f"{name} takes no jobs: {queue.refuses}", advice)
    elif queue.holds:
        yield warn("queue", f"{name} starts no jobs: {queue.holds}", "They wait until it does.")
    else:
        yield ok("queue", name)
    if queue.limit_s is not None and spec.time_limit_s > queue.limit_s:
        seen = f"the job asks for {hours(spec.time_limit_s)}, {name} gives {hours(queue.limit_s)}"
        yield fail("time", seen, _LOWER)
    else:
        yield ok("time", f"{hours(spec.time_limit_s)} of {hours(queue.limit_s)}")
    yield _judge_size(queue, spec)


def _judge_size(queue: QueueFacts, spec: JobSpec) -> Finding:
    cpus, name = slots_of(spec), queue.name
    if queue.most_cpus is not None and cpus > queue.most_cpus:
        seen = f"the job asks for {cpus} CPUs, {name} gives a job {queue.most_cpus}"
        return fail("nodes", seen, _LESS)
    if queue.most_nodes is not None and spec.nodes > queue.most_nodes:
        seen = f"the job asks for {spec.nodes} nodes, {name} gives a job {queue.most_nodes}"
        return fail("nodes", seen, _LESS)
    if spec.nodes < queue.least_nodes:
        seen = f"{name} is for {queue.least_nodes} nodes and more, the job asks for {spec.nodes}"
        return fail("nodes", seen, "Name another queue as `batch.partition`.")
    return ok("nodes", f"{spec.nodes} with {spec.cpus_per_node} CPUs are within {name}'s limits")
