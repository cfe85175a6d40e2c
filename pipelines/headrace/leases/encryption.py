"""TLS between the Dask parts of a lease: a key of its own, in the lease's private folder."""

from __future__ import annotations

from distributed.security import Security

from headrace.storage.atomic import write_text
from headrace.storage.layout import LeaseFolder

_KEY = "key.pem"
_CERTIFICATE = "certificate.pem"


def make_keys(folder: LeaseFolder) -> Security:
    """Make key and certificate of a lease; whoever can read its folder can use the lease.

    Side effects: writes both into the lease's `tls` folder, which only its owner may read.
    """
    made = Security.temporary()
    folder.tls.mkdir(mode=0o700, exist_ok=True)
    write_text(folder.tls / _KEY, made.tls_client_key)
    write_text(folder.tls / _CERTIFICATE, made.tls_ca_file)
    return security(folder)


def security(folder: LeaseFolder) -> Security | None:
    """How to talk to the lease's Dask cluster; None for one that keeps to one machine."""
    if not folder.tls.exists():
        return None
    key, certificate = str(folder.tls / _KEY), str(folder.tls / _CERTIFICATE)
    roles = ("scheduler", "worker", "client")
    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        **{f"tls_{role}_key": key for role in roles},
        **{f"tls_{role}_cert": certificate for role in roles},
    )
