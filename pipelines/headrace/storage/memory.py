"""Memory that this process may still fill, within the limits of its control groups."""

from __future__ import annotations

from pathlib import Path

import psutil

_NO_LIMIT_BYTES = 2**60
"""Control groups without a limit say `max` (v2) or a number above this (v1)."""

_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_V2 = ("memory.max", "memory.current", "")


def available_memory_bytes() -> int:
    """Bytes that fit into memory before this machine or a control group runs out of it."""
    groups = Path("/proc/self/cgroup")
    text = groups.read_text() if groups.exists() else ""
    limit = control_group_room_bytes(text, Path("/sys/fs/cgroup"))
    available = int(psutil.virtual_memory().available)
    return available if limit is None else min(available, limit)


def control_group_room_bytes(groups: str, mount: Path) -> int | None:
    """Smallest room in the memory control groups of a process, from its own up to the root.

    Files cached in memory count as room, since the kernel gives them up; files on tmpfs do not.

    Args:
        groups: Content of `/proc/<pid>/cgroup`.
        mount: Where control groups are mounted, as in `/sys/fs/cgroup`.

    Returns:
        Bytes, None when no limit is set.
    """
    rooms: list[int] = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            rooms += _rooms(mount, path, _V2)
        elif "memory" in controllers.split(","):
            rooms += _rooms(mount / "memory", path, _V1)
    return min(rooms) if rooms else None


def _rooms(root: Path, path: str, names: tuple[str, str, str]) -> list[int]:
    group = Path(path.lstrip("/"))
    found = (_room(root / part, names) for part in (group, *group.parents))
    return [room for room in found if room is not None]


def _room(folder: Path, names: tuple[str, str, str]) -> int | None:
    limit_name, used_name, prefix = names
    try:
        limit = (folder / limit_name).read_text().strip()
        used_bytes = int((folder / used_name).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:  # the group of another namespace, or one without the memory controller
        return None
    if limit == "max" or int(limit) >= _NO_LIMIT_BYTES:
        return None
    statistics = dict(line.split(maxsplit=1) for line in lines)
    cached = sum(int(statistics.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return max(int(limit) - used_bytes + cached, 0)
