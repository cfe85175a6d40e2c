"""Nodes on which a run's leases have failed, and failures that no node is to blame for."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.clusters import lease_client
from headrace.clusters.lease_jobs import symptom_of
from headrace.ledger.ledger import open_ledger
from headrace.ledger.rows import LeaseRecord
from headrace.runs.runs import Run

_MOST_BAD_NODES = 8
"""A cluster that fails on more nodes than these is not healed by leaving some out."""


def bad_nodes(run: Run, records: Sequence[LeaseRecord]) -> tuple[str, ...]:
    """Nodes that a run's leases, given the newest first, failed on; a few, the newest last."""
    found: dict[str, None] = {}
    for record in reversed(records):
        seen = lease_client.bad_nodes(run.lease_folder(record.lease_id))
        if seen is None or not_the_nodes(run, record, records):
            continue
        for node in seen.nodes:
            found.pop(node, None)
            found[node] = None
    return tuple(found)[-_MOST_BAD_NODES:]


def why_not_the_nodes(run: Run, lease_id: str) -> str:
    """What is missing, and where to put it right, where other nodes would fail like a lease's.

    Empty where other nodes may do better.
    """
    records = open_ledger().leases(run_id=run.run_id)
    record = next((each for each in records if each.lease_id == lease_id), None)
    return "" if record is None else not_the_nodes(run, record, records)


def not_the_nodes(run: Run, record: LeaseRecord, records: Sequence[LeaseRecord]) -> str:
    """As `why_not_the_nodes`, of one of all leases of the run."""
    folder = run.lease_folder(record.lease_id)
    symptom = symptom_of(folder)
    if symptom is None:
        return ""
    others = [each for each in records if each.key == record.key and each != record]
    seen = [symptom_of(run.lease_folder(each.lease_id)) for each in others]
    again = sum(1 for each in seen if each is not None and each.words == symptom.words)
    num_times = symptom.num_nodes + again
    if num_times < 2:
        return ""
    return (
        f"{symptom.words}\n  It was the same {num_times} times, so that no node is at fault: "
        "correct `batch` (container, python, modules, prologue) or the tiers of role "
        f"{record.role} in site {run.site.name}. See {folder.log}"
    )
