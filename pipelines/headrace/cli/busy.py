"""How busy the nodes and ranks of a training are, in words."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.cli.console import amount
from headrace.steps.history import UsageRow, Use

_MAX_NODES = 4


def busy(use: Use) -> Iterator[str]:
    """How busy nodes that train are, a line each, and which rank has the most memory."""
    nodes, ranks = use.nodes, use.ranks
    for node in nodes[:_MAX_NODES]:
        gpu = "" if node.gpu is None else f", GPUs {node.gpu:.0%}"
        yield f"{node.node}: CPU {node.cpu:.0%}{gpu}, memory {node.memory:.0%}{_traffic(node)}"
    if len(nodes) > _MAX_NODES:
        yield f"… and {len(nodes) - _MAX_NODES} more nodes: headrace status --json"
    if ranks:
        most = max(ranks, key=lambda rank: rank.rss_bytes)
        cores = sum(rank.cores for rank in ranks) / len(ranks)
        yield (
            f"ranks: {cores:.2g} cores each, the most memory has rank {most.rank}: "
            f"{amount(most.rss_bytes)}B"
        )


def _traffic(node: UsageRow) -> str:
    told = (
        ("disk read", node.disk_read_bytes_per_s),
        ("written", node.disk_write_bytes_per_s),
        ("network in", node.network_in_bytes_per_s),
        ("out", node.network_out_bytes_per_s),
    )
    return "".join(f", {name} {amount(rate)}B/s" for name, rate in told if rate is not None)
