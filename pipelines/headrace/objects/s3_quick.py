"""Requests by obstore: a tenth of the CPU time of s3fs for small objects, half for large ones.

Only plain success is handled here. For everything else the caller uses s3fs, which follows
redirects, reports errors and knows temporary failures.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from posixpath import normpath
from typing import Any
from urllib.parse import urlsplit

from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from headrace.errors import StoreAccessError, without_secrets
from headrace.objects.fsspec_store import Piece
from headrace.recipe.site import StoreOptions

try:
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store as ObjectStore
except ModuleNotFoundError:  # it has no wheels for POWER: s3fs does all
    obstore, BaseError = None, OSError  # type: ignore[assignment,misc]

_EXPRESS = "--x-s3"  # suffix of buckets whose requests are signed in another way
_KEYS_LAST = timedelta(minutes=15)
"""Credentials are read again after this time; botocore renews expiring ones."""

_CHUNK_BYTES = 8 * 2**20
PARTS_AHEAD = 8
"""Times the parts' size, the memory of one upload: 64 MiB."""
_FAILURES = (BaseError, BotoCoreError, OSError, ValueError)

About = dict[str, Any]
"""Facts about an object, as in fsspec's `info`."""

_user: dict[str, int] = {}
"""The process that uses obstore: its threads do not survive a fork, and it would hang."""


class Quick:
    """Gets, lists and puts objects; safe to share by threads."""

    def __init__(self, endpoint_url: str, region: str, options: StoreOptions) -> None:
        self._endpoint_url = endpoint_url
        self._region = region
        self._options = options
        self._session = Session(profile=options.profile)
        self._knows_ranges: bool | None = None
        self._opened = lru_cache(maxsize=64)(self._open)

    def get(self, bucket: str, key: str, start: int = 0, end: int | None = None) -> Piece | None:
        """Return an object or a part of it; None without a plain success."""
        is_whole = start == 0 and end is None
        store = self._store(bucket, key)
        if store is None or (not is_whole and self._knows_ranges is False):
            return None
        span: Any = {"offset": start} if end is None else (start, end)
        try:
            answer = obstore.get(store, key, options=None if is_whole else {"range": span})
            self._knows_ranges = self._knows_ranges or not is_whole or None
            return Piece(answer.bytes().to_bytes(), _version(answer.meta))
        except _FAILURES as error:
            if "non-partial" in str(error):
                self._knows_ranges = False
            return None

    def head(self, bucket: str, key: str) -> About | None:
        """Return what S3 answers to HEAD; None without a plain answer.

        Some versions of Swift send a body with a 404, which aiohttp reads as the next answer.

        Raises:
            FileNotFoundError: The object or its bucket does not exist.
        """
        store = self._store(bucket, key)
        try:
            found = None if store is None else obstore.head(store, key)
        except FileNotFoundError:
            raise
        except _FAILURES:
            return None
        return found and {"ETag": found["e_tag"] or "", "ContentLength": found["size"]}

    def stream(self, bucket: str, key: str, version: str) -> Iterator[memoryview]:
        """Yield a version of an object from its start, if the server does not support ranges.

        Ends early without a plain success; yields nothing if ranges are faster.
        """
        if self._knows_ranges is None:
            self.get(bucket, key, 0, 1)
        store = self._store(bucket, key)
        if store is None or self._knows_ranges is not False:
            return
        try:
            answer = obstore.get(store, key)
            if _version(answer.meta) == version:
                for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                    yield memoryview(chunk)
        except _FAILURES:
            return

    def pages(self, bucket: str, prefix: str) -> Generator[list[About], None, str | None]:
        """Objects whose names begin with `prefix`, which is empty or ends with a slash, in pages.

        Returns:
            None at the end of the listing; else the name after which s3fs must continue.
        """
        last = ""
        store = self._store(bucket, f"{prefix}x")
        if store is None:
            return last
        try:
            for page in obstore.list(store, prefix or None, chunk_size=1000):
                if not all(one["size"] for one in page):  # obstore drops the slash of markers
                    return last
                yield [{"name": f"{bucket}/{one['path']}", **one} for one in page]
                last = page[-1]["path"]
        except _FAILURES:
            return last
        return None

    def put(self, bucket: str, key: str, chunks: Iterator[bytes], chunk_bytes: int) -> bool:
        """Put a large object in parts, each signed by its SHA-256; return whether it exists."""
        store = self._store(bucket, key, self._options.max_attempts - 1)
        if store is None:
            return False
        limits: Any = {"chunk_size": chunk_bytes, "max_concurrency": PARTS_AHEAD}
        try:
            obstore.put(store, key, chunks, use_multipart=True, **limits)
        except _FAILURES:
            return False
        return True

    def _store(self, bucket: str, key: str, max_retries: int = 0) -> ObjectStore | None:
        """Return a bucket; None if obstore cannot handle the object."""
        can_ask = bool(obstore) and _user.setdefault("pid", os.getpid()) == os.getpid()
        is_plain = normpath(key) == key and not bucket.endswith(_EXPRESS)
        return self._opened(bucket, max_retries) if can_ask and is_plain else None

    def _open(self, bucket: str, max_retries: int) -> ObjectStore:
        options = self._options
        url, is_virtual = bucket_url(self._endpoint_url, bucket, options.addressing)
        client: dict[str, Any] = {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=min(options.timeout, 10)),
            "read_timeout": timedelta(seconds=options.timeout),
            "timeout": timedelta(days=1),
        }
        config: Any = {
            "endpoint": url,
            "aws_endpoint_url_s3": url,  # else the environment's would precede the site's
            "region": self._region,
            "virtual_hosted_style_request": is_virtual,
            "skip_signature": options.anonymous,
        }
        more: Any = {} if options.anonymous else {"credential_provider": self._keys}
        more |= {"config": config, "retry_config": {"max_retries": max_retries}}
        try:
            if url.startswith("https:"):
                client |= self._trust()
            return ObjectStore(bucket, client_options=client, **more)  # type: ignore[arg-type]
        except _FAILURES as error:
            raise StoreAccessError(
                f"{without_secrets(url)} cannot be used: {error}",
                "Check `s3` of the site and AWS_CA_BUNDLE.",
            ) from error

    def _trust(self) -> dict[str, bytes]:
        bundle = self._session.get_config_variable("ca_bundle")
        return {"root_certificate": Path(bundle).read_bytes()} if bundle else {}

    def _keys(self) -> dict[str, Any]:
        found = self._session.get_credentials()
        if not isinstance(found, RefreshableCredentials):  # another program may renew their file
            found = Session(profile=self._options.profile).get_credentials()
        keys = found.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(timezone.utc) + _KEYS_LAST,
        }


def bucket_url(endpoint_url: str, bucket: str, addressing: str) -> tuple[str, bool]:
    """Return obstore's endpoint of a bucket, and whether the bucket's name is part of it."""
    parts = urlsplit(endpoint_url)
    is_aws = (parts.hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
    if addressing == "virtual" or (addressing == "auto" and is_aws and "." not in bucket):
        return f"{parts.scheme}://{bucket}.{parts.netloc}", True
    return endpoint_url, False


def _version(about: Any) -> str:
    return (about["e_tag"] or "").strip('"')
