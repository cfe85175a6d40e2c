"""By what a process is told its part of a node."""

from __future__ import annotations

import pytest

from headrace.clusters.gpus import Gpu
from headrace.errors import LeaseError
from headrace.suites.node_slots import NodeCapacity, part_of
from headrace.suites.shared_gpus import gpus_at

GIB = 2**30


def test_a_part_of_a_node_is_named_to_processes():
    gpus = tuple(Gpu(name=name) for name in ("4", "MIG-b"))
    node = NodeCapacity(machine="gpu-7", gpus=gpus, cpus=(0, 1), memory_bytes=8 * GIB)
    assert part_of(node, gpus_at(node, (1, 0)), (2, 5)) == {
        "CUDA_VISIBLE_DEVICES": "MIG-b,4",
        "HEADRACE_CPUS": "2,5",
        "HEADRACE_MEMORY_BYTES": "0",
    }
    assert part_of(node, (), ()) == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "HIP_VISIBLE_DEVICES": "-1",
        "HEADRACE_MEMORY_BYTES": str(8 * GIB),
    }
    with pytest.raises(LeaseError, match="GPU 2 was assigned, but the node has 2"):
        gpus_at(node, (0, 2))
