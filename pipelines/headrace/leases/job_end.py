"""How the job of a lease comes to an end: what queue, books and files tell together."""

from __future__ import annotations

import logging

from headrace.batch.jobs import JobStatus, JobView, overdue_view
from headrace.batch.system import BatchSystem
from headrace.errors import BatchError
from headrace.leases.records import LeaseSpec
from headrace.storage.layout import LeaseFolder

logger = logging.getLogger(__name__)


def overdue(seen: JobStatus, folder: LeaseFolder, spec: LeaseSpec, system: str) -> JobView | None:
    """A job that runs, and whose host should have reported long ago."""
    timeout_s = spec.role.start_timeout + spec.lost_after_s
    since = seen.running_since
    if folder.host.exists() or since is None or seen.seen_at - since < timeout_s:
        return None
    return overdue_view(seen, system, timeout_s)


def with_books(system: BatchSystem, seen: JobStatus) -> JobStatus:
    """Add what only the books tell, where there are any."""
    if seen.is_from_books:
        return seen
    try:
        told = system.accounting([seen.job_id]).get(seen.job_id)
    except BatchError as error:
        logger.info("%s", error.what)
        return seen
    if told is None:
        return seen
    failed, reason = told.failed_nodes or seen.failed_nodes, seen.reason or told.reason
    changes = {"failed_nodes": failed, "earlier": told.earlier, "reason": reason}
    return seen.model_copy(update=changes)
