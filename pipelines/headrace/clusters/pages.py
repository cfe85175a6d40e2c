"""Address of a lease's Dask pages, for programs that have the lease's key. Does not import Dask."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.clusters.lease_files import LeaseFiles
from headrace.clusters.lease_records import LeaseInfo
from headrace.errors import UserError
from headrace.files.atomic import read_bytes
from headrace.files.layout import LeaseFolder
from headrace.states import LeaseState


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Pages of a Dask scheduler."""

    url: str
    """Address of their folder, with a slash at its end."""
    key: ssl.SSLContext
    """Presents the key of the lease, and accepts no other server."""
    by_hand: str
    """What users can do if the connection is blocked."""


def pages_of(folder: LeaseFolder) -> Pages:
    """Return the pages of a lease, from its files.

    Raises:
        UnknownNameError: The lease does not exist.
        UserError: It is not ready, or has ended.
    """
    files = LeaseFiles.read(folder)
    state = files.state(files.spec.lost_after_s)
    info, scheduler = files.get(LeaseInfo), read_bytes(folder.scheduler_file)
    if state is not LeaseState.READY or info is None or scheduler is None:
        why = files.why_ended or files.wait().why
        raise UserError(
            f"Lease {folder.lease_id} is {state.value}{why and ': '}{why}",
            "A Dask dashboard exists as long as its lease is ready.",
        )
    port = json.loads(scheduler)["services"]["pages"]
    host, link = urlsplit(info.scheduler_address).hostname, urlsplit(info.dashboard_url)
    tunnel = f"ssh -N -L {link.port}:127.0.0.1:{link.port} {info.host.host}"
    return Pages(
        url=f"https://{host}:{port}/{link.path.split('/')[1]}/",
        key=_key(folder),
        by_hand="Let the machine of Airflow's API server reach the ports of this lease's nodes. Or "
        f"run `{tunnel}` on yours, and open there what `headrace lease show {folder.lease_id}` "
        "shows as its dashboard.",
    )


def _key(folder: LeaseFolder) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate is the lease's own, without a machine's name
    context.load_verify_locations(folder.certificate)
    context.load_cert_chain(folder.certificate, folder.key)
    return context
