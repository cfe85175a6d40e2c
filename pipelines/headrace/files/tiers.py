"""Storage tiers of a node: their free space, and which one to use."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ByteSize

from headrace.errors import StorageFullError
from headrace.files.locks import at_once
from headrace.files.machine import available_memory_bytes, file_system_of, free_bytes
from headrace.recipe.site import Tier
from headrace.recipe.unix_accounts import login_name

_IN_MEMORY = ("tmpfs", "ramfs")
_LEAST_RESERVE_BYTES = 256 * 2**20
_DAY_S = 86400.0
_OTHERS_WRITE = 0o022


@dataclass(frozen=True, kw_only=True)
class TierRoom:
    """Space of one tier for one dataset, measured at one moment."""

    name: str
    folder: Path
    needed_bytes: int
    """Bytes still missing there."""
    free_bytes: int = 0
    """Bytes the file system (and, for memory, the memory limit) can take."""
    held_bytes: int = 0
    """Bytes that headrace uses there already."""
    budget_bytes: int | None = None
    """Most bytes that headrace may use there."""
    reserve_bytes: int = 0
    problem: str = ""
    """Why the tier cannot be used at all; empty if it can."""

    @property
    def usable_bytes(self) -> int:
        """Return the bytes that may be written there."""
        if self.problem:
            return 0
        usable = self.free_bytes - self.reserve_bytes
        if self.budget_bytes is not None:
            usable = min(usable, self.budget_bytes - self.held_bytes)
        return max(usable, 0)

    @property
    def has_room(self) -> bool:
        """Whether the missing bytes fit."""
        return not self.problem and self.needed_bytes <= self.usable_bytes


def choose(rooms: Iterable[TierRoom], what: str) -> TierRoom:
    """Return the first tier with space for `what`; `StorageFullError` lists what each lacks."""
    rooms = tuple(rooms)
    for room in rooms:
        if room.has_room:
            return room
    lines = "\n".join(f"    {_describe(room)}" for room in rooms)
    raise StorageFullError(
        f"No storage tier has room for {what}:\n{lines}",
        "See `headrace cache list`. Raise `budget` or lower `reserve` of a tier in the site, add "
        "a tier, stage fewer splits (`stage.splits`), or stage what fits and read the rest from "
        "the dataset's folder (`stage.partial: true`).",
    )


def folder_of(tier: Tier) -> Path:
    """Return the folder of a tier on this node, for this user."""
    return Path(tier.folder.replace("{user}", login_name())).expanduser()


def prepare(folder: Path) -> str:
    """Create a tier's folder, for this user alone; return why it is unusable, else ''."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        owners = (folder.lstat().st_uid, folder.stat().st_uid)
    except OSError as error:
        return f"cannot be created: {error.strerror or error}"
    for owner in owners:
        if owner not in (os.getuid(), 0):
            return f"belongs to another user (uid {owner})"
    mode = folder.stat().st_mode
    if mode & _OTHERS_WRITE:
        return (
            f"can be written by other users ({stat.filemode(mode)}): close it to them, or name "
            f"{folder}/headrace-{{user}}"
        )
    return "" if os.access(folder, os.W_OK | os.X_OK) else "is not writable"


def keep_s(tier: Tier) -> float:
    """Return the seconds that an unused copy stays on a tier, whose folder exists."""
    if tier.keep is not None:
        return tier.keep
    return _DAY_S if _is_in_memory(folder_of(tier)) else 7 * _DAY_S


def measure(tier: Tier, needed_bytes: int, problem: str = "", batch_bytes: int = 0) -> TierRoom:
    """Measure the space of a prepared tier, unless a problem with it is known.

    In memory, `batch_bytes` stay free besides the reserve.
    """
    folder = folder_of(tier)
    if problem:
        return TierRoom(name=tier.name, folder=folder, needed_bytes=needed_bytes, problem=problem)
    room, in_memory = room_bytes(folder), _is_in_memory(folder)
    promised_bytes = outstanding_bytes(folder / "datasets")
    return TierRoom(
        name=tier.name,
        folder=folder,
        needed_bytes=needed_bytes,
        free_bytes=max(room - promised_bytes, 0),
        held_bytes=bytes_in(folder) + promised_bytes,
        budget_bytes=tier.budget,
        reserve_bytes=reserve_bytes(tier.reserve, room, in_memory) + in_memory * batch_bytes,
    )


def reserve_bytes(wanted: int | None, room: int, in_memory: bool) -> int:
    """Return the bytes of a tier that stay free: the site's value, else what programs need."""
    if wanted is not None:
        return wanted
    return max(_LEAST_RESERVE_BYTES, room // 10 if in_memory else 0)


def outstanding_bytes(datasets: Path) -> int:
    """Return the bytes that other processes have yet to write to copies they are staging now."""
    total = 0
    for file in datasets.glob("*.reserved"):
        with at_once(file.with_suffix(".lock")) as is_free:
            if not is_free:
                with suppress(FileNotFoundError):  # the stage has just ended
                    total += max(int(file.read_text()) - bytes_in(file.with_suffix("")), 0)
    return total


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            with suppress(FileNotFoundError):  # another process has just renamed it
                total += Path(parent, name).lstat().st_size
    return total


def room_bytes(folder: Path) -> int:
    """Return the bytes that fit into a folder; in memory, at most the memory that is left."""
    free = free_bytes(folder)
    return min(free, available_memory_bytes()) if _is_in_memory(folder) else free


def _is_in_memory(folder: Path) -> bool:
    return file_system_of(folder) in _IN_MEMORY


def _describe(room: TierRoom) -> str:
    if room.problem:
        return f"{room.name}: {room.folder} {room.problem}"
    budget = "none" if room.budget_bytes is None else shown_bytes(room.budget_bytes)
    return (
        f"{room.name}: {room.folder} needs {shown_bytes(room.needed_bytes)}, "
        f"has {shown_bytes(room.free_bytes)} free (keeps {shown_bytes(room.reserve_bytes)}), "
        f"budget {budget} of which {shown_bytes(room.held_bytes)} are taken"
    )


def shown_bytes(num_bytes: int) -> str:
    """Return bytes as people read them: `1.5GiB`."""
    return ByteSize(num_bytes).human_readable()
