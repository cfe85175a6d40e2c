"""GET with little work for each request: what reading many small files from S3 needs.

botocore takes about a millisecond of one core for a GET, most of it for choosing an endpoint,
signing and parsing; here it is a tenth of that. Only success is understood: for everything else
the caller asks botocore again, which redirects, tells what is wrong and what may pass.
"""

from __future__ import annotations

import ssl
import weakref
from collections import deque
from functools import cached_property, lru_cache
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from botocore.exceptions import BotoCoreError, NoCredentialsError
from botocore.httpsession import get_cert_path
from botocore.session import Session
from botocore.utils import get_environ_proxies

from headrace.recipe.site import StoreOptions
from headrace.storage.s3_page import Page, parse_page
from headrace.storage.s3_sign import signed_headers
from headrace.storage.s3_wire import Response, Wire

_EXPRESS = "--x-s3"
"""Ends the names of buckets whose requests are signed in another way."""
_PORTS = {"http": 80, "https": 443}


class Answer(NamedTuple):
    """What a GET brought."""

    content: bytes
    """The bytes asked for."""
    etag: str
    """The ETag header."""
    ranged: bool
    """Whether the server followed the range."""


class _Base(NamedTuple):
    """Where a bucket's objects are."""

    is_tls: bool
    """Whether by HTTPS."""
    host: str
    """Name or address."""
    port: int
    """Port."""
    netloc: str
    """Host header: with the port where it is not the usual one."""
    path: str
    """Path of the bucket, with a slash at its end."""


class QuickGet:
    """Gets objects over connections that are kept open; safe to share by threads.

    Args:
        session: Gives the credentials.
        client: Gives the buckets' addresses.
        options: Time limit, number of connections, anonymous or not.
    """

    def __init__(self, session: Session, client: Any, options: StoreOptions) -> None:
        self._session = session
        self._client = client
        self._options = options
        self._region = client.meta.region_name
        self._idle: deque[tuple[str, Wire]] = deque()
        self._base = lru_cache(maxsize=64)(self._find_base)
        weakref.finalize(self, _close_all, self._idle)

    def get(self, bucket: str, key: str, span: str = "") -> Answer | None:
        """An object or a part of it.

        Args:
            bucket: Name of the bucket.
            key: Name of the object.
            span: Value of the Range header; empty for the whole object.

        Returns:
            None when there was no plain success, whatever the reason.
        """
        found = self._sent(bucket, quote(key, safe="/~"), "", span)
        if found is None or b"etag" not in found.headers:
            return None
        etag = found.headers[b"etag"].decode("latin-1")
        return Answer(found.content, etag, b"content-range" in found.headers)

    def list_page(self, bucket: str, prefix: str, token: str) -> Page | None:
        """Up to 1,000 objects of a bucket, as `list_objects_v2` gives them.

        Args:
            bucket: Name of the bucket.
            prefix: What their names begin with.
            token: Where the page begins, from the page before; empty for the first.

        Returns:
            None when there was no plain success, whatever the reason.
        """
        values = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        if token:
            values["continuation-token"] = token
        pairs = sorted(values.items())
        query = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in pairs)
        found = self._sent(bucket, None, query, "")
        return parse_page(found.content) if found is not None else None

    def base(self, bucket: str) -> str:
        """URL of a bucket's objects, with a slash at the end; empty when botocore must do it."""
        if bucket.endswith(_EXPRESS):
            return ""
        params = {"Bucket": bucket, "Key": "k"}
        url: str = self._client.generate_presigned_url("get_object", Params=params)
        # presigned URLs name AWS's global host, which only redirects to young buckets elsewhere
        url = url.replace("s3.amazonaws.com/", f"s3.{self._region}.amazonaws.com/", 1)
        proxies = get_environ_proxies(url)
        proxied = "all" in proxies or urlsplit(url).scheme in proxies
        return "" if proxied else url.partition("?")[0][:-1]

    def _find_base(self, bucket: str) -> _Base | None:
        parts = urlsplit(self.base(bucket))
        if not parts.hostname:
            return None
        port = parts.port or _PORTS[parts.scheme]
        is_tls = parts.scheme == "https"
        return _Base(is_tls, parts.hostname, port, parts.netloc, parts.path)

    def _sent(self, bucket: str, key: str | None, query: str, span: str) -> Response | None:
        """The answer when it is a success; no key asks for the bucket itself."""
        try:
            base = self._base(bucket)
            if base is None:
                return None
            path = base.path + key if key is not None else base.path.rstrip("/") or "/"
            headers = self._headers(base, path, query, span)
            found = self._exchanged(base, f"{path}?{query}" if query else path, headers)
        except (BotoCoreError, OSError, HTTPException):
            return None
        return found if found.status in (200, 206) else None

    def _headers(self, base: _Base, path: str, query: str, span: str) -> dict[str, str]:
        headers = {"host": base.netloc}
        if span:
            headers["range"] = span
        if self._options.anonymous:
            return headers
        credentials = self._session.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        keys = credentials.get_frozen_credentials()
        return signed_headers(path, query, headers, keys, self._region)

    def _exchanged(self, base: _Base, target: str, headers: dict[str, str]) -> Response:
        wire = self._wire(base)
        try:
            return wire.get(target, headers)
        finally:
            if wire.is_reusable and len(self._idle) < self._options.connections:
                self._idle.append((base.netloc, wire))
            else:
                wire.close()

    def _wire(self, base: _Base) -> Wire:
        for _ in range(len(self._idle)):  # of buckets on other hosts too
            try:
                netloc, found = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if netloc == base.netloc:
                return found
            self._idle.appendleft((netloc, found))
        trust = self._trust if base.is_tls else None
        return Wire(base.host, base.port, self._options.timeout, trust)

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        bundle = self._session.get_config_variable("ca_bundle")
        return ssl.create_default_context(cafile=get_cert_path(bundle or True))


def _close_all(wires: deque[tuple[str, Wire]]) -> None:
    while wires:
        wires.pop()[1].close()
