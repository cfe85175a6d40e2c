"""TLS between the Dask parts of a lease: a key of its own, in the lease's private folder."""

from __future__ import annotations

from distributed.security import Security

from headrace.storage.layout import LeaseFolder

KEY = "key.pem"
CERTIFICATE = "certificate.pem"


def security(folder: LeaseFolder) -> Security:
    """How to talk to the lease's Dask cluster; nobody gets in without its key."""
    key, certificate = str(folder.tls / KEY), str(folder.tls / CERTIFICATE)
    roles = ("scheduler", "worker", "client")
    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        **{f"tls_{role}_key": key for role in roles},
        **{f"tls_{role}_cert": certificate for role in roles},
    )
