"""Makes the key of a lease; apart from its use, as its library takes a while to load."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from distributed.security import Security

from headrace.leases.encryption import CERTIFICATE, KEY, security
from headrace.storage.atomic import write_bytes
from headrace.storage.layout import LeaseFolder

_CLOCKS_DIFFER = datetime.timedelta(days=1)
_OUTLIVES_ANY_LEASE = datetime.timedelta(days=3650)


def make_keys(folder: LeaseFolder) -> Security:
    """Make key and certificate of a lease; whoever can read its folder can use the lease.

    Side effects: writes both into the lease's `tls` folder, which only its owner may read.
    """
    key = ec.generate_private_key(ec.SECP256R1())  # RSA's would take a hundred times as long
    folder.tls.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_bytes(folder.tls / KEY, secret)
    write_bytes(folder.tls / CERTIFICATE, _certificate(key).public_bytes(Encoding.PEM))
    return security(folder)


def _certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """The key's own signature, which is the only one that the lease's processes trust."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "headrace-lease")])
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _OUTLIVES_ANY_LEASE)
        .sign(key, hashes.SHA256())
    )
