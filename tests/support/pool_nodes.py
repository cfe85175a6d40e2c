"""Nodes of a pool that no queue knows."""

from __future__ import annotations

import time

from headrace.batch.job_records import JobSpec
from headrace.batch.queue_state import JobRecord
from headrace.clusters.lease_machines import NodeRequest
from headrace.clusters.pool_job import PoolJob

SPEC = JobSpec(
    name="demo", command=("true",), nodes=1, cpus_per_node=1, time_limit_s=60, folder="/", log="/l"
)


def pool_job(exclude: tuple[str, ...] = (), time_limit_s: float = 60.0) -> PoolJob:
    """The first node, whose job has just been submitted."""
    request = NodeRequest(serial=1, number=0, time_limit_s=time_limit_s, exclude=exclude)
    job = PoolJob(name="node-0", request=request, spec=SPEC, script="#!/bin/sh\ntrue")
    job.set_submitted(JobRecord(job_id="7", name="demo", submitted_at=0.0), time.monotonic())
    return job
