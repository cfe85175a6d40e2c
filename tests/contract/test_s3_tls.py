"""S3 by HTTPS, with a certificate authority of one's own."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.errors import StoreAccessError
from headrace.objects.protocol import StoredFile
from headrace.objects.store import open_store
from support.s3_servers import S3Server, new_bucket, serving


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a certificate for 127.0.0.1, beside one with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    (tmp_path / "key.pem").write_bytes(key.private_bytes(encoding, pkcs8, no_password))
    (tmp_path / "cert.pem").write_bytes(made.public_bytes(encoding))
    return tmp_path / "cert.pem"


@pytest.fixture
def server(certificate: Path, s3_credentials: None, tmp_path: Path) -> Iterator[S3Server]:
    """An S3 server with that certificate."""
    (tmp_path / "served").mkdir()
    key = certificate.with_name("key.pem")
    with serving(tmp_path / "served", "--cert", str(certificate), "--key", str(key)) as found:
        yield found


def test_the_bundle_of_the_environment_is_trusted(server, certificate, monkeypatch):
    """By s3fs, which writes and tells, and by obstore, which reads."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    store = open_store(new_bucket(server), server.options)
    store.write("a", b"x")
    assert store.stat("a") is not None
    asked: list[object] = []
    monkeypatch.setattr("s3fs.S3FileSystem._cat_file", lambda *more, **span: asked.append(more))
    assert list(store.read_files([StoredFile("a", 1, "")])) == [b"x"]
    assert not asked


def test_an_unknown_authority_is_told_at_once(server: S3Server) -> None:
    store = open_store("s3://bucket", server.options.model_copy(update={"max_attempts": 9}))
    with pytest.raises(StoreAccessError, match="AWS_CA_BUNDLE"):
        store.read("a")


def test_a_bundle_that_is_none_is_told(server, tmp_path, monkeypatch):
    (tmp_path / "bundle.pem").write_text("nothing")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "bundle.pem"))
    with pytest.raises(StoreAccessError, match="AWS_CA_BUNDLE"):
        open_store("s3://bucket", server.options).read("a")
