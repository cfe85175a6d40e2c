"""Nodes that pass shards on to each other: who they are, and how they find and trust each other.

A folder on shared storage, which only their user can read, holds a random key and for each node
a file with its port and the shards that it holds.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.record import Record

_KEY_BYTES = 32


class Notice(Record):
    """What a node tells the others of its group."""

    port: int
    """Port of its `ShardServer`."""
    files: tuple[str, ...]
    """Shards that lie there."""
    is_staged: bool
    """Whether these are all that it will hold."""


@dataclass(frozen=True, kw_only=True)
class PeerGroup:
    """The nodes, as one of them sees them."""

    folder: Path
    """Folder on shared storage where they find each other."""
    hosts: tuple[str, ...]
    """Address that each node is reached by, in order of their indices."""
    index: int
    """This node."""

    @property
    def others(self) -> tuple[int, ...]:
        """Indices of the other nodes, the next one first."""
        count = len(self.hosts)
        return tuple((self.index + step) % count for step in range(1, count))

    def order(self, number: int) -> tuple[int, ...]:
        """Nodes in the order in which they are to fetch a shard, by its number in the manifest."""
        count = len(self.hosts)
        return tuple((number + step) % count for step in range(count))

    def part(self, number: int) -> tuple[int, ...]:
        """Sort key of a shard by its number: those that this node is to hold come first.

        The nodes take turns. What a node has room for beyond its own turns, it takes from the end,
        since the others hold the first ones of theirs.
        """
        turn, node = divmod(number, len(self.hosts))
        distance = (node - self.index) % len(self.hosts)
        return (1, -turn, distance) if distance else (0, turn)

    def sign(self, file: str) -> str:
        """Proof that who asks for a shard can read the group's folder."""
        key = (self.folder / "key").read_bytes()
        return hmac.new(key, file.encode(), hashlib.sha256).hexdigest()

    def announce(self, port: int, files: Iterable[str], *, is_staged: bool) -> None:
        """Give the others this node's `Notice`."""
        notice = Notice(port=port, files=tuple(files), is_staged=is_staged)
        self._notice(self.index).write_text(f"{notice.model_dump_json()}\n")

    def notice_of(self, index: int) -> Notice | None:
        """What a node has told; None when it has not yet."""
        text = self._notice(index).read_text()
        return Notice.model_validate_json(text) if text.endswith("\n") else None

    def port_of(self, index: int) -> int | None:
        """Port of a node; None when it has not told it yet."""
        notice = self.notice_of(index)
        return notice.port if notice else None

    def held_by(self, index: int) -> frozenset[str] | None:
        """Shards that a node holds; None while it stages."""
        notice = self.notice_of(index)
        return frozenset(notice.files) if notice and notice.is_staged else None

    def _notice(self, index: int) -> Path:
        return self.folder / f"node-{index}"


def groups_of(
    folder: Path, hosts: Sequence[str], mode: Literal["auto", "never"]
) -> list[PeerGroup | None]:
    """Who passes shards on to whom: all nodes, unless some share a host and so its storage.

    The files of the nodes are made here, empty, and written in place later: clients of NFS remember
    for half a minute that a file is not there, but look at its content when they open it.

    Args:
        folder: Folder on shared storage in which theirs is made, unless they stage alone.
        hosts: Address of each node.
        mode: `stage.peers` of the recipe.

    Returns:
        The group as each node sees it; None for a node that stages alone.
    """
    if mode == "never" or len(hosts) < 2 or len(set(hosts)) < len(hosts):
        return [None] * len(hosts)
    meeting = folder / f"peers-{uuid.uuid4().hex}"
    meeting.mkdir(mode=0o700, parents=True)
    contents = {"key": secrets.token_bytes(_KEY_BYTES)}
    contents |= {f"node-{index}": b"" for index in range(len(hosts))}
    for name, content in contents.items():
        handle = os.open(meeting / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    return [
        PeerGroup(folder=meeting, hosts=tuple(hosts), index=index) for index in range(len(hosts))
    ]
