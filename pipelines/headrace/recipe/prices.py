"""What the machines of a role cost, where their place does not tell."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from headrace.recipe.base import AmountFrom0
from headrace.record import Record

_GB = 1e9


class SitePrices(Record):
    """What a site takes besides its machines; what is not given, nobody knows."""

    usd_per_gb_month: AmountFrom0 | None = None
    """US dollars a month for each GB (10⁹ bytes) of packed datasets."""
    usd_per_fetched_gb: AmountFrom0 | None = None
    """US dollars for each GB that is read from an object store."""
    usd_per_staff_hour: AmountFrom0 | None = None
    """US dollars for an hour of people, which `headrace cost --staff-hours` tells."""

    def of_bytes(self, stored: int | None, fetched: int | None) -> dict[str, Any]:
        """What bytes of both kinds cost, and how many have no price, as a row of usage has it."""
        kinds = {"usd_storage": (stored, self.usd_per_gb_month),
                 "usd_transfer": (fetched, self.usd_per_fetched_gb)}  # fmt: skip
        told: dict[str, Any] = {
            name: None if num_bytes is None or price is None else num_bytes / _GB * price
            for name, (num_bytes, price) in kinds.items()
        }
        unpriced = sum(num_bytes or 0 for num_bytes, price in kinds.values() if price is None)
        return told | {"unpriced_bytes": unpriced}


class NodePrice(Record):
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
