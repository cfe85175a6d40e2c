"""What the machines of a role cost, where their place does not tell."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from headrace.recipe.base import AmountFrom0, Settings


class NodePrice(Settings):
    """What a node costs, as a site says: an internal rate, a contract, a cluster of one's own.

    A node costs the sum of what is given. Waiting in a queue costs nothing.
    """

    usd_per_node_hour: AmountFrom0 | None = None
    """US dollars an hour for each node."""
    usd_per_gpu_hour: AmountFrom0 | None = None
    """US dollars an hour for each of its `batch.gpus_per_node`."""
    usd_per_core_hour: AmountFrom0 | None = None
    """US dollars an hour for each CPU that is asked for."""
    usd_licences_per_node_hour: AmountFrom0 | None = None
    """US dollars an hour for licences of what runs on each node."""
    source: str = "site file"
    """Who says so, which the ledger keeps with the price."""
    as_of: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    """Date of the price, such as `2026-06-17`."""

    @model_validator(mode="after")
    def _check(self) -> NodePrice:
        rates = (self.usd_per_node_hour, self.usd_per_gpu_hour, self.usd_per_core_hour)
        if all(rate is None for rate in rates):
            raise ValueError(
                "no rate is given; write `usd_per_node_hour`, `usd_per_gpu_hour` or "
                "`usd_per_core_hour`, which may be 0"
            )
        return self

    def usd_per_hour(self, gpus: int, cpus: int) -> float:
        """US dollars an hour for a node with so many GPUs and CPUs."""
        whole = (self.usd_per_node_hour or 0.0) + (self.usd_licences_per_node_hour or 0.0)
        return (
            whole + gpus * (self.usd_per_gpu_hour or 0.0) + cpus * (self.usd_per_core_hour or 0.0)
        )
