"""Three S3 servers of independent make on the loopback interface, and buckets in them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headrace.processes.identity import die_with_parent
from headrace.recipe.site import StoreOptions
from support.waiting import wait_until

KEY = "headrace:test"  # account and user, as Swift writes it
SECRET = "a-secret-that-no-message-may-show"

_PYTHON = "/usr/bin/python3"
_SWIFT = Path("/usr/lib/python3/dist-packages/swift")
_SERVES = re.compile(r"Starting s3 server on \[(https?://[^/]+)/\]")


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A running server."""

    name: str
    endpoint_url: str

    @property
    def options(self) -> StoreOptions:
        """How to reach it."""
        return StoreOptions(endpoint_url=self.endpoint_url)


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    """moto: keeps its buckets in the memory of this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield S3Server(name="moto", endpoint_url=f"http://{host}:{port}")
    server.stop()


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """`rclone serve s3`: a folder; checks signatures."""
    with serving(tmp_path_factory.mktemp("rclone-s3")) as server:
        yield server


@pytest.fixture(scope="session")
def swift_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """OpenStack Swift with its S3 API: a cluster of one disk; checks signatures."""
    if not _SWIFT.exists():
        pytest.skip("install the Debian package python3-swift")
    folder = tmp_path_factory.mktemp("swift")
    node = Path(__file__).with_name("swift_node.py")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [_PYTHON, str(node), str(folder), KEY, SECRET], stdout=subprocess.PIPE, stderr=log,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),
        )  # fmt: skip
    try:
        with process.stdout:
            endpoint_url = process.stdout.readline().decode().strip()
        assert endpoint_url, (folder / "log").read_text()
        yield S3Server(name="swift", endpoint_url=endpoint_url)
    finally:
        process.kill()
        process.wait(60)


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[S3Server]:
    """`rclone serve s3` of a folder, with further options."""
    log = folder.with_suffix(".log")
    command = [rclone(), "serve", "s3", "--config", "", "--addr", "127.0.0.1:0", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, str(folder)],
            env={**os.environ, "RCLONE_AUTH_KEY": f'"{KEY},{SECRET}"'},
            stderr=output,
        )
    try:
        found = wait_until(lambda: _SERVES.search(log.read_text()), 60.0, "rclone to serve")
        yield S3Server(name="rclone", endpoint_url=found[1])
    finally:
        process.terminate()
        process.wait(90)


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test servers' keys in the environment, and nothing else of AWS."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in aws_settings().items():
        monkeypatch.setenv(name, value)


def aws_settings() -> dict[str, str]:
    """Environment of processes that use the test servers, without settings of AWS.

    It is the same for all tests: their leases share what is imported.
    """
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1",
    }


@pytest.fixture
def moto_bucket(moto_server: S3Server, s3_credentials: None) -> str:
    """An empty bucket of moto's, as a URL."""
    return new_bucket(moto_server)


@pytest.fixture
def rclone_bucket(rclone_server: S3Server, s3_credentials: None) -> str:
    """An empty bucket of rclone's, as a URL."""
    return new_bucket(rclone_server)


@pytest.fixture
def swift_bucket(swift_server: S3Server, s3_credentials: None) -> str:
    """An empty bucket of Swift's, as a URL."""
    return new_bucket(swift_server)


def new_bucket(server: S3Server) -> str:
    """Make a bucket; the credentials must be in the environment.

    Returns:
        `s3://bucket`.
    """
    name = f"test-{uuid.uuid4().hex}"
    client(server).create_bucket(Bucket=name)
    return f"s3://{name}"


@cache
def client(server: S3Server) -> Any:
    """botocore's client; the credentials must be in the environment."""
    import botocore.session

    session = botocore.session.get_session()
    return session.create_client("s3", "us-east-1", endpoint_url=server.endpoint_url)


def rclone() -> str:
    """Path of the rclone program, next to this interpreter's."""
    return str(Path(sys.executable).parent / "rclone")
