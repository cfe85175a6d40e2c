"""TLS between the Dask parts of a lease: a key of its own, in the lease's private folder."""

from __future__ import annotations

import datetime

from distributed.security import Security

from headrace.files.atomic import write_bytes
from headrace.files.layout import LeaseFolder

_KEY = "key.pem"
_CERTIFICATE = "certificate.pem"
_CLOCKS_DIFFER = datetime.timedelta(days=1)
_OUTLIVES_ANY_LEASE = datetime.timedelta(days=3650)


def security(folder: LeaseFolder) -> Security:
    """How to talk to the lease's Dask cluster; nobody gets in without its key."""
    key, certificate = str(folder.tls / _KEY), str(folder.tls / _CERTIFICATE)
    roles = ("scheduler", "worker", "client")
    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        **{f"tls_{role}_key": key for role in roles},
        **{f"tls_{role}_cert": certificate for role in roles},
    )


def make_keys(folder: LeaseFolder) -> Security:
    """Make key and certificate of a lease; whoever can read its folder can use the lease.

    Side effects: writes both into the lease's `tls` folder, which only its owner may read.
    """
    # here, as clients and workers need none of it, and it takes a while to load
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    # not Dask's `Security.temporary`: a node whose clock is behind would refuse the certificate
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "headrace-lease")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)  # its own signature, the only one that the lease's processes trust
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _OUTLIVES_ANY_LEASE)
        .sign(key, hashes.SHA256())
    )
    folder.tls.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_bytes(folder.tls / _KEY, secret)
    write_bytes(folder.tls / _CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    return security(folder)
