"""Opens the Dask scheduler of a lease whose nodes are elsewhere, and prepares their workers."""

from __future__ import annotations

import logging
import os

import dask
from distributed import Scheduler
from distributed.utils import get_ip, get_ip_interface

from headrace.errors import LeaseError
from headrace.leases.cluster import CONFIG, worker_environment
from headrace.leases.encryption import make_keys
from headrace.leases.records import LeaseSpec
from headrace.storage.layout import LeaseFolder

_LOOPBACK = "127.0.0.1"


async def open_scheduler(folder: LeaseFolder, spec: LeaseSpec) -> Scheduler:
    """Open the scheduler of a lease whose nodes are elsewhere.

    Side effects: sets Dask's configuration; writes key and certificate into the lease's folder.

    Raises:
        LeaseError: This machine has no such network interface.
    """
    configure()
    return await Scheduler(
        host=address(spec.role.batch.interface),
        port=0,
        protocol="tls",
        security=make_keys(folder),
        dashboard_address=f"{_LOOPBACK}:0",
    )


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
        LeaseError: This node has no such interface.
    """
    if interface is None:
        return str(get_ip())
    try:
        return str(get_ip_interface(interface))
    except ValueError as error:
        raise LeaseError(
            f"The node has no network interface '{interface}': {error}",
            "Correct `batch.interface` of the role in the site.",
        ) from error
