"""Which network interface leads to the other nodes, and how processes are told."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil


def interface_of(address: str, interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """Name of the network interface that has an IP address; None when there is none."""
    with suppress(ValueError):
        wanted = str(ipaddress.ip_address(address))
        for name, found in interfaces.items():
            if wanted in (each.partition("%")[0] for each in found):
                return name
    return None


def interfaces() -> dict[str, list[str]]:
    """Addresses of this machine by network interface."""
    found = psutil.net_if_addrs().items()
    return {name: [each.address for each in addresses] for name, addresses in found}


def network_environment(interface: str | None) -> dict[str, str]:
    """Variables that make gloo and NCCL use a network interface; none where it is not known."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {name: interface for name in names if interface}
