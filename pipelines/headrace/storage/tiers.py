"""Storage tiers of a node: how much room each has, and which one to take."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ByteSize

from headrace.errors import StorageFullError
from headrace.recipe.site import Tier
from headrace.storage.memory import available_memory_bytes

_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True, kw_only=True)
class TierRoom:
    """What one tier could take of one dataset, measured at one moment."""

    name: str
    """Name of the tier."""
    folder: Path
    """Folder of the tier on this node."""
    needed_bytes: int
    """Bytes that are still missing there."""
    free_bytes: int = 0
    """Bytes the file system (and, for memory, the memory limit) can take."""
    held_bytes: int = 0
    """Bytes that headrace holds there already."""
    budget_bytes: int | None = None
    """Most bytes that headrace may hold there."""
    reserve_bytes: int = 0
    """Bytes that must stay free."""
    problem: str = ""
    """Why the tier cannot be used at all; empty when it can."""

    @property
    def usable_bytes(self) -> int:
        """Bytes that may be written there."""
        if self.problem:
            return 0
        usable = self.free_bytes - self.reserve_bytes
        if self.budget_bytes is not None:
            usable = min(usable, self.budget_bytes - self.held_bytes)
        return max(usable, 0)

    @property
    def has_room(self) -> bool:
        """Whether what is missing fits."""
        return not self.problem and self.needed_bytes <= self.usable_bytes


def choose(rooms: Iterable[TierRoom], what: str) -> TierRoom:
    """The first tier with room.

    Args:
        rooms: The tiers, fastest first.
        what: What is to be put there, for the error.

    Raises:
        StorageFullError: No tier has room; names what each one lacks.
    """
    rooms = tuple(rooms)
    for room in rooms:
        if room.has_room:
            return room
    lines = "\n".join(f"    {_describe(room)}" for room in rooms)
    raise StorageFullError(
        f"No storage tier has room for {what}:\n{lines}",
        "Delete datasets that are no longer needed from these folders, raise `budget` or lower "
        "`reserve` of a tier in the site, add a tier, or stage fewer splits (`stage.splits`).",
    )


def folder_of(tier: Tier) -> Path:
    """Folder of a tier on this node, for this user."""
    return Path(tier.folder.replace("{user}", getpass.getuser())).expanduser()


def prepare(folder: Path) -> str:
    """Create a tier's folder, for this user alone.

    Returns:
        Why it cannot be used, empty when it can.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        return f"cannot be created: {error.strerror or error}"
    if owner not in (os.getuid(), 0):
        return f"belongs to another user (uid {owner})"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "is not writable"


def measure(tier: Tier, needed_bytes: int, problem: str = "") -> TierRoom:
    """Measure how much room a prepared tier has.

    Args:
        tier: The tier.
        needed_bytes: Bytes to be written there.
        problem: Why it cannot be used, when that is known.
    """
    folder = folder_of(tier)
    if problem:
        return TierRoom(name=tier.name, folder=folder, needed_bytes=needed_bytes, problem=problem)
    return TierRoom(
        name=tier.name,
        folder=folder,
        needed_bytes=needed_bytes,
        free_bytes=_free_bytes(folder),
        held_bytes=_held_bytes(folder),
        budget_bytes=tier.budget,
        reserve_bytes=tier.reserve,
    )


def file_system(mounts: str, path: Path) -> str:
    """Type of the file system that holds a path.

    Args:
        mounts: Content of `/proc/self/mounts`.
        path: An absolute path without links.
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        _, point, name = line.split(" ", 3)[:3]
        point = point.replace("\\040", " ")
        if len(Path(point).parts) >= best and path.is_relative_to(point):
            best, kind = len(Path(point).parts), name
    return kind


def _free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    free_bytes = status.f_bavail * status.f_frsize
    mounts = Path("/proc/self/mounts")
    kind = file_system(mounts.read_text(), folder.resolve()) if mounts.exists() else ""
    return min(free_bytes, available_memory_bytes()) if kind in _IN_MEMORY else free_bytes


def _held_bytes(folder: Path) -> int:
    names = (Path(parent) / name for parent, _, files in os.walk(folder) for name in files)
    return sum(_size_of(name) for name in names)


def _size_of(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:  # another process has just renamed it
        return 0


def _describe(room: TierRoom) -> str:
    if room.problem:
        return f"{room.name}: {room.folder} {room.problem}"
    budget = "none" if room.budget_bytes is None else _size(room.budget_bytes)
    return (
        f"{room.name}: {room.folder} needs {_size(room.needed_bytes)}, "
        f"has {_size(room.free_bytes)} free (keeps {_size(room.reserve_bytes)}), "
        f"budget {budget} of which {_size(room.held_bytes)} are taken"
    )


def _size(num_bytes: int) -> str:
    return ByteSize(num_bytes).human_readable()
