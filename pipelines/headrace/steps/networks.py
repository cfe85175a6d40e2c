"""Which network interface leads to the other nodes, and how processes are told."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

import psutil


def interface_of(address: str, interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """Name of the network interface that has an IP address; None when there is none."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    for name, found in interfaces.items():
        if any(str(wanted) == each.partition("%")[0] for each in found):
            return name
    return None


def interfaces() -> dict[str, list[str]]:
    """Addresses of this machine by network interface."""
    found = psutil.net_if_addrs().items()
    return {name: [each.address for each in addresses] for name, addresses in found}


def network_environment(interface: str | None) -> dict[str, str]:
    """Variables that make gloo and NCCL use a network interface; none where it is not known."""
    if interface is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
