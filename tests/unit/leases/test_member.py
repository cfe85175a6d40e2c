"""The process of a node: it ends in order when it is asked to, and tells what ended it else."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from headrace.leases import member


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
