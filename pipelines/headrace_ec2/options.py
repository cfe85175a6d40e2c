"""Settings for EC2: the region, the image, the instances and their placement."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.recipe.base import Amount, AmountFrom0, Bytes, Count, Problems, Settings, Texts

Market = Literal["on-demand", "spot", "capacity-block"]


class Ec2Options(Settings):
    """Instances of backend `ec2`, which has no queue; credentials come from the environment."""

    region: str
    """Region, as `eu-central-1`."""
    image: str
    """Image: its id; `resolve:ssm:NAME` for a parameter with the id; or a pattern of names, as
    `headrace-*`, whose newest match is used."""
    image_owner: str = "self"
    """Account of images that a pattern of names can match: its number, `self` or `amazon`."""
    instance_types: Annotated[Texts, Field(min_length=1)]
    """Types of instances, the preferred ones first, as `g5.2xlarge`; one job has one type."""
    markets: Annotated[tuple[Market, ...], Field(min_length=1, max_length=10)] = ("on-demand",)
    """How they are paid for, tried in this order for each type: `spot`, `on-demand`, or both; or
    `capacity-block`, for instances of the capacity block in `capacity_reservation`."""
    rebalance: Literal["save", "leave"] = "save"
    """Reaction to EC2's recommendation to leave a spot instance: `save` lets training save a
    checkpoint and stay; `leave` treats it as an interruption notice."""
    interruptions_per_hour: AmountFrom0 | None = None
    """Interruptions of one spot instance per hour, for the cost forecast of `headrace plan`; null
    assumes that 1 in 5 instances is interrupted within a month."""
    max_price: Amount | None = None
    """Highest price of a spot instance, US dollars per hour; null for the price on demand."""
    subnets: Texts = ()
    """Subnets, tried in this order for each type and market; empty for that of the default VPC.
    All nodes of a gang are in one."""
    security_groups: Texts = ()
    """Ids of security groups; they must let the nodes reach each other and the host."""
    instance_profile: str | None = None
    """Name of the instance profile, which gives the nodes an IAM role; null for none."""
    key_name: str | None = None
    """Key pair for logins by SSH; null for none."""
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]*$")] | None = None
    """Account of the image that the work runs as; null for root."""
    disk: Bytes | None = None
    """Size of the root volume; null for the image's size."""
    disk_iops: Annotated[Count, Field(ge=3000)] | None = None
    """I/O requests per second of the root volume (gp3); null for 3000."""
    disk_throughput: Bytes | None = None
    """Bytes per second of the root volume (gp3); null for 125 MiB."""
    root_device: str = "/dev/xvda"
    """Name of the image's root device; for Ubuntu's images it is `/dev/sda1`."""
    instance_store: Annotated[str, Field(pattern=r"^(/[\w.-]+)+$")] | None = None
    """Folder at which a node's instance store (NVMe) is mounted, for a tier: formatted, striped
    over its devices; null to leave it unused. It is lost with the instance."""
    placement_group: str | None = None
    """Placement group that keeps the nodes of a gang close to each other; null for none."""
    efa: bool = False
    """Whether the nodes get an Elastic Fabric Adapter as their network interface."""
    capacity_reservation: str | None = None
    """Capacity reservation to use: for instances on demand, or a capacity block."""
    prices: dict[str, dict[Market, AmountFrom0]] = {}
    """US dollars per hour by type and market, as in `{g5.xlarge: {on-demand: 1.006}}`; others are
    queried, see `price_sources`."""
    prices_as_of: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    """Date of `prices`, which the ledger stores with them, as `2026-06-17`."""
    price_sources: Annotated[
        tuple[Literal["spot-history", "price-list"], ...], Field(max_length=10)
    ] = ("spot-history",)
    """Sources of other prices: EC2's history for spot prices; the price list of AWS for those on
    demand, which needs the right `pricing:GetProducts`. Others stay unknown (not 0)."""
    tags: dict[str, str] = {}
    """Further tags of instances and volumes, as `{project: vision}`."""
    profile: str | None = None
    """Profile of the AWS configuration files; null for the environment's."""
    endpoint_url: str | None = None
    """Server other than AWS; null for `AWS_ENDPOINT_URL` or AWS."""

    @property
    def reserved_market(self) -> Market:
        """Market of the capacity reservation; other markets do not use it."""
        return "capacity-block" if "capacity-block" in self.markets else "on-demand"

    def problems(self) -> Problems:
        """Yield options that exclude each other."""
        if self.max_price is not None and "spot" not in self.markets:
            yield "`max_price` is for `markets: [spot]`; leave it out"
        if self.capacity_reservation is None and "capacity-block" in self.markets:
            yield ("`markets: [capacity-block]` needs the id of the block: write it as "
                   "`capacity_reservation`")  # fmt: skip
        if self.capacity_reservation is not None and self.reserved_market not in self.markets:
            yield ("spot instances cannot use a `capacity_reservation`; leave it out, or add "
                   "`on-demand` or `capacity-block` to `markets`")  # fmt: skip
        if self.disk is None and (self.disk_iops or self.disk_throughput):
            yield "`disk_iops` and `disk_throughput` go with `disk`; write its size"
        own = sorted(key for key in self.tags if key == "Name" or key.startswith("headrace:"))
        if own:
            yield f"tag '{own[0]}' is headrace's own; choose another name"
