"""Connections to S3: one client and one pool of threads per process and set of options."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from headrace.errors import StoreAccessError, without_secrets
from headrace.recipe.site import StoreOptions
from headrace.storage.s3_errors import Place, explained
from headrace.storage.s3_get import QuickGet

_DEFAULT_REGION = "us-east-1"
_CONNECT_TIMEOUT_S = 10.0

_connections: dict[tuple[int, StoreOptions], S3Connection] = {}
"""By process, as neither sockets nor threads survive a fork."""


@dataclass(frozen=True, kw_only=True)
class S3Connection:
    """What a process uses to talk to one server; safe to share by threads."""

    client: Any
    """botocore's S3 client, without retries of its own."""
    quick: QuickGet
    """Gets objects with less work than the client, where nothing is special."""
    pool: ThreadPoolExecutor
    """Runs the requests that are under way at once; tasks in it must not submit further ones."""


def connection(options: StoreOptions) -> S3Connection:
    """This process' connection with the options.

    Raises:
        StoreAccessError: The endpoint or the profile cannot be used.
    """
    key = (os.getpid(), options)
    found = _connections.get(key)
    if found is None:  # two threads at once may both connect; the first one's stays
        found = _connections.setdefault(key, _connect(options))
    return found


def forget(options: StoreOptions) -> None:
    """Connect anew the next time, with credentials as they are then."""
    _connections.pop((os.getpid(), options), None)


def place(url: str, options: StoreOptions) -> Place:
    """What the errors of requests about a URL name; never a secret."""
    profile = options.profile or os.environ.get("AWS_PROFILE")
    identity = f"profile '{profile}'" if profile else "the environment's credentials"
    endpoint = options.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3")
    return Place(
        url=url,
        endpoint=without_secrets(endpoint or os.environ.get("AWS_ENDPOINT_URL") or "AWS"),
        identity="no credentials" if options.anonymous else identity,
    )


def _connect(options: StoreOptions) -> S3Connection:
    try:
        session = botocore.session.Session(profile=options.profile)
        client = session.create_client(
            "s3",
            region_name=options.region or session.get_config_variable("region") or _DEFAULT_REGION,
            endpoint_url=options.endpoint_url,
            config=_config(options),
        )
    except BotoCoreError as error:
        raise explained(error, place("s3://", options)) from error
    except ValueError as error:  # what botocore raises for a malformed endpoint
        where = place("s3://", options)
        raise StoreAccessError(
            f"'{where.endpoint}' is no endpoint of S3", "Valid: http://host:port or https://host."
        ) from error
    if "@" in urlsplit(client.meta.endpoint_url).netloc:
        raise StoreAccessError(
            "The endpoint of S3 holds a user or password",
            "Give credentials in the environment (AWS_ACCESS_KEY_ID, ...) or in a profile.",
        )
    pool = ThreadPoolExecutor(options.connections, thread_name_prefix="headrace-s3")
    return S3Connection(client=client, quick=QuickGet(session, client, options), pool=pool)


def _config(options: StoreOptions) -> Config:
    return Config(
        signature_version=UNSIGNED if options.anonymous else "s3v4",
        connect_timeout=min(options.timeout, _CONNECT_TIMEOUT_S),
        read_timeout=options.timeout,
        max_pool_connections=options.connections,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": options.addressing},
        tcp_keepalive=True,
        # checksums that servers other than AWS may not know; uploads carry an MD5 instead
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
