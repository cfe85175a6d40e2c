"""The process of a node: it ends in order when it is asked to, and tells what ended it else."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from headrace.leases import member
from headrace.storage.layout import LeaseFolder


class Node:
    """A node that ends itself as a batch system would, or fails."""

    def __init__(self, sent: signal.Signals | None) -> None:
        self.sent = sent
        self.closed = 0

    async def keep(self) -> None:
        if self.sent is None:
            raise ConnectionError("the scheduler has gone")
        os.kill(os.getpid(), self.sent)
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_is_asked_to_end_is_no_failure(sent: signal.Signals):
    node = Node(sent)
    asyncio.run(member._keep(node, 0))
    assert node.closed == 1


def test_what_ends_a_node_otherwise_is_raised():
    node = Node(None)
    with pytest.raises(ConnectionError, match="has gone"):
        asyncio.run(member._keep(node, 0))
    assert node.closed == 1


@pytest.mark.parametrize(("there", "joins"), [("", True), ("closed", False), ("close", True)])
def test_a_node_joins_a_lease_that_is_not_over_and_leaves_with_it(
    tmp_path: Path, there: str, joins: bool
):
    folder = LeaseFolder(tmp_path)
    folder.scheduler_file.write_text('{"address": "tls://127.0.0.1:7"}')
    if there:
        (tmp_path / there).touch()
        asyncio.run(asyncio.wait_for(member._sent_away(folder), 30))
    address = asyncio.run(member._scheduler_of(folder))
    assert address == ("tls://127.0.0.1:7" if joins else None)
