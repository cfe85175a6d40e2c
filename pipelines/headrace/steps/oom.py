"""Whether the kernel killed a process for memory: the counters of control groups."""

from __future__ import annotations

from pathlib import Path

KILLED = "the kernel killed it, as the memory ran out"
"""What is told of such a process."""

NEXT_STEP = (
    "Give it more memory (in a batch system, that of the job), or let it take less: smaller "
    "batches, fewer ranks on a node."
)


def num_memory_kills(
    groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> int:
    """Processes that were killed for memory in this process's control group, so far.

    Args:
        groups: File with the control groups of the process.
        mount: Where control groups are mounted.

    Returns:
        0 where the kernel does not tell.
    """
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return 0
    files = [_events_file(line, mount) for line in lines]
    return max((_oom_kills(file) for file in files if file is not None), default=0)


def _events_file(line: str, mount: Path) -> Path | None:
    _, controllers, path = line.split(":", 2)
    if not controllers:
        return mount / path.lstrip("/") / "memory.events"
    if "memory" in controllers.split(","):
        return mount / "memory" / path.lstrip("/") / "memory.oom_control"
    return None


def _oom_kills(file: Path) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(counts.get("oom_kill", 0))
