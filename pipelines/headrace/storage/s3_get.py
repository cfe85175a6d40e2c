"""GET with little work for each request: what reading many small files from S3 needs.

botocore takes about a millisecond of one core for a GET, most of it for choosing an endpoint and
parsing; here it is a quarter of that. Only success is understood: for everything else the caller
asks botocore again, which redirects, tells what is wrong and what may pass.
"""

from __future__ import annotations

import http.client
import ssl
import weakref
from collections import deque
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.httpsession import get_cert_path
from botocore.session import Session
from botocore.utils import get_environ_proxies

from headrace.recipe.site import StoreOptions

_EXPRESS = "--x-s3"
"""Ends the names of buckets whose requests are signed in another way."""


class Answer(NamedTuple):
    """What a GET brought."""

    content: bytes
    """The bytes asked for."""
    etag: str
    """The ETag header."""
    ranged: bool
    """Whether the server followed the range."""


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
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._base = lru_cache(maxsize=64)(self.base)
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
        try:
            base = self._base(bucket)
            return self._send(base + quote(key, safe="/~"), span) if base else None
        except (BotoCoreError, OSError, http.client.HTTPException):
            return None

    def _send(self, url: str, span: str) -> Answer | None:
        headers = self._signed(url, span)
        host, path = urlsplit(url).netloc, url.split("/", 3)[3]
        connection = self._connection(url, host)
        done = False
        try:
            connection.request("GET", f"/{path}", headers=headers)
            answer = connection.getresponse()
            content = answer.read()
            done = not answer.will_close
        finally:
            if done and len(self._idle) < self._options.connections:
                self._idle.append(connection)
            else:
                connection.close()
        etag = answer.getheader("ETag")
        if answer.status not in (200, 206) or etag is None or answer.length is None:
            return None
        return Answer(content, etag, answer.getheader("Content-Range") is not None)

    def _connection(self, url: str, host: str) -> http.client.HTTPConnection:
        for _ in range(len(self._idle)):  # of buckets on other hosts too
            try:
                found = self._idle.popleft()
            except IndexError:  # another thread was faster
                break
            if found.host == urlsplit(url).hostname:
                return found
            self._idle.append(found)
        timeout = self._options.timeout
        if url.startswith("https:"):
            return http.client.HTTPSConnection(host, timeout=timeout, context=self._trust)
        return http.client.HTTPConnection(host, timeout=timeout)

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        bundle = self._session.get_config_variable("ca_bundle")
        return ssl.create_default_context(cafile=get_cert_path(bundle or True))

    def _signed(self, url: str, span: str) -> dict[str, str]:
        request = AWSRequest("GET", url, {"Range": span} if span else {})
        if not self._options.anonymous:
            region = self._client.meta.region_name
            S3SigV4Auth(self._session.get_credentials(), "s3", region).add_auth(request)
        return dict(request.headers.items())

    def base(self, bucket: str) -> str:
        """URL of a bucket's objects, with a slash at the end; empty when botocore must do it."""
        if bucket.endswith(_EXPRESS):
            return ""
        params = {"Bucket": bucket, "Key": "k"}
        url: str = self._client.generate_presigned_url("get_object", Params=params)
        # presigned URLs name AWS's global host, which only redirects to young buckets elsewhere
        region = self._client.meta.region_name
        url = url.replace("s3.amazonaws.com/", f"s3.{region}.amazonaws.com/", 1)
        proxies = get_environ_proxies(url)
        proxied = "all" in proxies or urlsplit(url).scheme in proxies
        return "" if proxied else url.partition("?")[0][:-1]


def _close_all(connections: deque[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()
