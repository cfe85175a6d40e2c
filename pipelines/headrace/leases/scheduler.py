"""Opens the Dask scheduler of a lease whose nodes are elsewhere, and prepares their workers."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import warnings

import dask
import psutil
from distributed.utils import get_ip, get_ip_interface

from headrace.errors import LeaseError
from headrace.leases.cluster import CONFIG, worker_environment
from headrace.leases.dashboard import LeaseScheduler
from headrace.leases.keys import make_keys
from headrace.leases.records import LeaseSpec
from headrace.storage.layout import LeaseFolder


async def open_scheduler(folder: LeaseFolder, spec: LeaseSpec) -> LeaseScheduler:
    """Open the scheduler of a lease whose nodes are elsewhere.

    Side effects: sets Dask's configuration; writes key and certificate into the lease's folder.

    Raises:
        LeaseError: This machine has no such network interface.
    """
    configure()
    scheduler: LeaseScheduler = await LeaseScheduler(
        host=address(spec.role.batch.interface),
        port=0,
        protocol="tls",
        security=make_keys(folder),
    )
    return scheduler


def configure() -> None:
    """Set Dask's configuration."""
    dask.config.set(CONFIG)
    logging.getLogger("distributed").setLevel(logging.WARNING)  # its import sets another level


def prepare(spec: LeaseSpec) -> None:
    """Set Dask's configuration and the environment that the worker takes over."""
    configure()
    os.environ.update(worker_environment(spec.role))


def address(interface: str | None) -> str:
    """Address by which other nodes reach this one.

    Args:
        interface: Network interface; None for the one of the default route.

    Raises:
        LeaseError: This node has no such interface, or several and no default route.
    """
    if interface is None:
        return _default_address()
    try:
        return str(get_ip_interface(interface))
    except ValueError as error:
        raise LeaseError(
            f"The node has no network interface '{interface}': {error}",
            "Correct `batch.interface` of the role in the site.",
        ) from error


def _default_address() -> str:
    """Address of the default route; without one, of the only interface that others can reach.

    A name is no help: Debian makes a host's own name stand for 127.0.1.1.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a missing route, which is seen to here
        found = str(get_ip())
    if not ipaddress.ip_address(found).is_loopback:
        return found
    others = {
        name: each.address
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET and not ipaddress.ip_address(each.address).is_loopback
    }
    if len(others) > 1:
        listed = ", ".join(f"{name} ({address})" for name, address in sorted(others.items()))
        raise LeaseError(
            f"The node has no default route, and several network interfaces: {listed}",
            "Name the one that other nodes reach as `batch.interface` of the role in the site.",
        )
    return next(iter(others.values()), found)
