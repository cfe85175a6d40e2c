"""The probe step: tells what the nodes of a lease are, and that it works from end to end."""

from __future__ import annotations

from typing import Any

from headrace.leases.fleet import Fleet
from headrace.probes.node import node_facts
from headrace.steps.context import StepContext
from headrace.storage.tiers import folder_of


def run(context: StepContext) -> dict[str, Any]:
    """Look at nodes of the lease.

    Args:
        context: Input `nodes`: how many to look at; 1 when left out.

    Returns:
        `nodes`: for each node its `name`, `address` and `NodeFacts`.

    Raises:
        LeaseError: The nodes are not there in time.
    """
    count = int(str(context.spec.inputs.get("nodes") or 1))
    tiers = {tier.name: str(folder_of(tier)) for tier in context.site.tiers}
    context.progress(0, count, "nodes", "waiting for nodes")
    found: list[dict[str, Any]] = []
    with Fleet.open(context.lease_folder) as fleet:
        timeout_s = fleet.role.start_timeout
        for node in fleet.nodes(count, timeout_s, check=context.check):
            facts = fleet.call(node, node_facts, tiers)
            found.append({"name": node.name, "address": node.address, **facts.model_dump()})
            context.progress(len(found), count, "nodes", "looking at nodes")
    return {"nodes": found}
