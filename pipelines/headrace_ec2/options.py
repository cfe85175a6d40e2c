"""What EC2 is asked for: the region, the image, the instances and where they stand."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from headrace.recipe.base import Amount, AmountFrom0, Bytes, Count, Settings, Texts, no_credentials

Market = Literal["on-demand", "spot", "capacity-block"]


class Ec2Options(Settings):
    """Instances of backend `ec2`, which has no queue; credentials come from the environment."""

    region: str
    """Region, such as `eu-central-1`."""
    image: str
    """Image: its id; `resolve:ssm:NAME` for a parameter that holds the id; or a pattern of names,
    such as `headrace-*`, of which the newest is taken."""
    image_owner: str = "self"
    """Account whose images a pattern of names looks for: its number, `self` or `amazon`."""
    instance_types: Annotated[Texts, Field(min_length=1)]
    """Types of instances, the most wanted first, such as `g5.2xlarge`; one job has one type."""
    markets: Annotated[tuple[Market, ...], Field(min_length=1, max_length=10)] = ("on-demand",)
    """How they are paid, tried in this order for each type: `spot`, `on-demand`, or both; or
    `capacity-block`, for instances of the capacity block that is `capacity_reservation`."""
    rebalance: Literal["save", "leave"] = "save"
    """What EC2's recommendation to leave a spot instance does: `save` lets training save a
    checkpoint and stay; `leave` does what an interruption notice does."""
    interruptions_per_hour: AmountFrom0 | None = None
    """Interruptions of one spot instance an hour, for what `headrace plan` says they cost; null
    assumes that 1 in 5 instances is interrupted within a month."""
    max_price: Amount | None = None
    """Most US dollars an hour for a spot instance; null for the price on demand."""
    subnets: Texts = ()
    """Subnets, tried in this order for each type and market; empty: that of the default VPC. All
    nodes of a gang are in one."""
    security_groups: Texts = ()
    """Ids of security groups; they let the nodes reach each other and the host."""
    instance_profile: str | None = None
    """Name of the instance profile, which gives the nodes a role of IAM; null for none."""
    key_name: str | None = None
    """Key pair for logging in by SSH; null for none."""
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]*$")] | None = None
    """Account of the image that the work runs as; null for root."""
    disk: Bytes | None = None
    """Size of the root volume; null for what the image says."""
    disk_iops: Annotated[Count, Field(ge=3000)] | None = None
    """Requests a second of the root volume (gp3); null for 3000."""
    disk_throughput: Bytes | None = None
    """Bytes a second of the root volume (gp3); null for 125 MiB."""
    root_device: str = "/dev/xvda"
    """Name of the image's root device; of Ubuntu's images it is `/dev/sda1`."""
    instance_store: Annotated[str, Field(pattern=r"^(/[\w.-]+)+$")] | None = None
    """Folder where the instance store (NVMe) of a node is mounted, for a tier: formatted, striped
    over its devices; null to leave it alone. It is gone with the instance."""
    placement_group: str | None = None
    """Placement group that keeps the nodes of a gang close to each other; null for none."""
    efa: bool = False
    """Whether the nodes get an Elastic Fabric Adapter as their network interface."""
    capacity_reservation: str | None = None
    """Capacity reservation that is used, on demand or as the capacity block that it is."""
    prices: dict[str, dict[Market, AmountFrom0]] = {}
    """US dollars an hour by type and market, as in `{g5.xlarge: {on-demand: 1.006}}`; what is not
    written here is asked for, see `price_sources`."""
    prices_as_of: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    """Date of `prices`, which the ledger keeps with them, such as `2026-06-17`."""
    price_sources: Annotated[
        tuple[Literal["spot-history", "price-list"], ...], Field(max_length=10)
    ] = ("spot-history",)
    """Whom to ask for other prices: EC2 for spot prices; the price list of AWS for those on demand,
    which needs the right `pricing:GetProducts`. What nobody tells stays unknown, and is no 0."""
    tags: dict[str, str] = {}
    """Further tags of instances and volumes, such as `{project: vision}`."""
    profile: str | None = None
    """Profile of the AWS configuration files; null for the environment's."""
    endpoint_url: str | None = None
    """Server other than AWS; null for `AWS_ENDPOINT_URL` or AWS."""

    @property
    def reserved_market(self) -> Market:
        """The market that the capacity reservation is for; the others do without it."""
        return "capacity-block" if "capacity-block" in self.markets else "on-demand"

    @model_validator(mode="after")
    def _check(self) -> Ec2Options:
        no_credentials("endpoint_url", self.endpoint_url)
        if self.max_price is not None and "spot" not in self.markets:
            raise ValueError("`max_price` is for `markets: [spot]`; leave it out")
        if self.capacity_reservation is None and "capacity-block" in self.markets:
            raise ValueError("`markets: [capacity-block]` needs the id of the block: write it as "
                             "`capacity_reservation`")  # fmt: skip
        if self.capacity_reservation is not None and self.reserved_market not in self.markets:
            raise ValueError("spot instances cannot use a `capacity_reservation`; leave it out, or "
                             "add `on-demand` or `capacity-block` to `markets`")  # fmt: skip
        if self.disk is None and (self.disk_iops or self.disk_throughput):
            raise ValueError("`disk_iops` and `disk_throughput` go with `disk`; write its size")
        own = sorted(key for key in self.tags if key == "Name" or key.startswith("headrace:"))
        if own:
            raise ValueError(f"tag '{own[0]}' is headrace's own; choose another name")
        return self
