"""Names on which host and step drivers agree towards the Dask scheduler."""

from __future__ import annotations

NODE = "NODE"
"""Resource of which each worker has one: a call that takes the whole node."""

SLOT = "SLOT"
"""Resource of which each worker has `threads_per_node`: one item of a map."""

DEMAND = "headrace-demand"
"""Key of the scheduler's metadata: nodes that each client asks a pool for."""

WAITS = "headrace-waits"
"""Key of the scheduler's metadata: what a pool's nodes wait for in a queue; empty or missing."""
