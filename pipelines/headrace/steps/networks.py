"""The network interface that leads to other nodes, and the variables that select it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

import psutil


def interface_of(address: str, interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """Return the network interface with an IP address; None if there is none."""
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    for name, found in interfaces.items():
        if any(str(wanted) == each.partition("%")[0] for each in found):
            return name
    return None


def interfaces() -> dict[str, list[str]]:
    """Return this machine's addresses by network interface."""
    found = psutil.net_if_addrs().items()
    return {name: [each.address for each in addresses] for name, addresses in found}


def network_environment(interface: str | None) -> dict[str, str]:
    """Return variables that make gloo and NCCL use an interface; none if it is unknown."""
    if interface is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
