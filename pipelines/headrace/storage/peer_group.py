"""Nodes that pass shards on to each other: who they are, and how they find and trust each other.

A folder on shared storage, which only their user can read, holds a random key and for each node
a file with its port and one with the shards that it holds.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class PeerGroup:
    """The nodes, as one of them sees them."""

    folder: Path
    """Folder made by `prepare`."""
    hosts: tuple[str, ...]
    """Address that each node is reached by, in order of their indices."""
    index: int
    """This node."""

    @property
    def others(self) -> tuple[int, ...]:
        """Indices of the other nodes."""
        return tuple(index for index in range(len(self.hosts)) if index != self.index)

    def order(self, number: int) -> tuple[int, ...]:
        """All nodes in the order in which they are to fetch a shard from where the dataset lies.

        Args:
            number: Number of the shard in its manifest. The first nodes take turns.
        """
        count = len(self.hosts)
        return tuple((number + step) % count for step in range(count))

    def part(self, number: int) -> tuple[int, ...]:
        """Sort key of a shard: those that this node is to hold come first, if not all fit.

        The nodes take turns. What a node has room for beyond its own turns, it takes from the end,
        since the others hold the first ones of theirs.

        Args:
            number: Number of the shard in its manifest.
        """
        turn, node = divmod(number, len(self.hosts))
        distance = (node - self.index) % len(self.hosts)
        return (1, -turn, distance) if distance else (0, turn)

    def key(self) -> bytes:
        """The secret of the nodes."""
        return _key_file(self.folder).read_bytes()

    def announce(self, port: int) -> None:
        """Tell the others the port of this node."""
        _port_file(self.folder, self.index).write_text(f"{json.dumps(port)}\n")

    def port_of(self, index: int) -> int | None:
        """Port of a node; None when it has not announced it yet."""
        text = _port_file(self.folder, index).read_text()
        return int(text) if text.endswith("\n") else None

    def tell_held(self, files: Iterable[str]) -> None:
        """Tell the others which shards this node holds from now on."""
        _held_file(self.folder, self.index).write_text(f"{json.dumps(list(files))}\n")

    def held_by(self, index: int) -> frozenset[str] | None:
        """Shards that a node holds; None when it has not told yet."""
        text = _held_file(self.folder, index).read_text()
        return frozenset(json.loads(text)) if text.endswith("\n") else None


def groups_of(
    folder: Path, hosts: Sequence[str], mode: Literal["auto", "never"]
) -> list[PeerGroup | None]:
    """Who passes shards on to whom: all nodes, unless some share a host and so its storage.

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
    prepare(meeting, len(hosts))
    return [
        PeerGroup(folder=meeting, hosts=tuple(hosts), index=index) for index in range(len(hosts))
    ]


def prepare(folder: Path, num_nodes: int) -> None:
    """Make the folder of a group, with a new key.

    The files of the nodes are made here, empty, and written in place later: clients of NFS
    remember for half a minute that a file is not there, but look at its content when they open it.
    """
    folder.mkdir(mode=0o700, parents=True)
    _write_private(_key_file(folder), secrets.token_bytes(_KEY_BYTES))
    for index in range(num_nodes):
        _write_private(_port_file(folder, index), b"")
        _write_private(_held_file(folder, index), b"")


def signature(key: bytes, *words: object) -> str:
    """Proof that who wrote the words knows the key."""
    return hmac.new(key, json.dumps(words).encode(), hashlib.sha256).hexdigest()


def _key_file(folder: Path) -> Path:
    return folder / "key"


def _port_file(folder: Path, index: int) -> Path:
    return folder / f"node-{index}"


def _held_file(folder: Path, index: int) -> Path:
    return folder / f"held-{index}"


def _write_private(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
