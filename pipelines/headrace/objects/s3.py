"""An S3 prefix as a store: s3fs with headrace's retries and errors, and obstore for speed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError
from fsspec.asyn import sync
from s3fs import S3FileSystem
from s3fs.errors import translate_boto_error

from headrace.errors import StoreAccessError, without_secrets
from headrace.files.manifest_file import FILE_NAME
from headrace.objects.fsspec_store import PIECE_BYTES, FsspecStore, Piece, Sent
from headrace.objects.protocol import StoredFile, Tick, checked_path
from headrace.objects.s3_errors import S3Request, explained, retried
from headrace.objects.s3_quick import PARTS_AHEAD, Quick
from headrace.recipe.site import StoreOptions

_DEFAULT_REGION = "us-east-1"
_CONNECT_TIMEOUT_S = 10.0
_MAX_PARTS = 10_000  # S3's limit
_NOT_LISTED = (404, 405, 501)  # statuses of servers without versions or uploads
_LEFT_OVER = (
    ("list_object_versions", ("Versions", "DeleteMarkers"), "delete_object", "VersionId"),
    ("list_multipart_uploads", ("Uploads",), "abort_multipart_upload", "UploadId"),
)
"""What is left when all objects are removed: listings and their parts, requests and their ids."""


class S3Store(FsspecStore):
    """A prefix of a bucket; see `FsspecStore`.

    Requests with a temporary failure are sent again; see `s3_errors.retried`. A failed upload is
    removed. If its process is killed, invisible parts stay in the bucket; a lifecycle rule of the
    bucket (AbortIncompleteMultipartUpload) removes those.
    """

    def purge(self) -> None:
        """Remove all objects, their versions and delete markers, and unfinished uploads.

        A manifest goes first, so that no dataset is found in part.
        """
        for name in sorted(self.list_names(), key=FILE_NAME.__ne__):
            self.delete(name)
        bucket, _, prefix = f"{self._root}/".partition("/")
        with self._errors(None):
            for left_over in _LEFT_OVER:
                self._files().remove_all(bucket, prefix, *left_over)

    def _open(self) -> Any:
        return _connect(self._options)

    def _pages(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        bucket, _, prefix = self._root.partition("/")
        prefix += "/" if prefix else ""
        after = yield from self._files().quick.pages(bucket, prefix)
        if after is not None:
            yield from self._files().pages(bucket, prefix, after)

    def _get(self, path: str, start: int = 0, end: int | None = None) -> Piece:
        found = self._files().quick.get(*self._object(path), start, end)
        return found if found is not None else super()._get(path, start, end)

    def _pieces(self, found: StoredFile, tick: Tick | None, start: int = 0) -> Iterator[memoryview]:
        if found.num_bytes > PIECE_BYTES:
            for content in self._files().quick.stream(*self._object(found.path), found.version):
                yield content
                start += len(content)
        yield from super()._pieces(found, tick, start)

    def _put(self, source: Path, path: str, sent: Sent, **more: Any) -> None:
        num_bytes = source.stat().st_size
        part = max(PIECE_BYTES, -(-num_bytes // _MAX_PARTS))
        if num_bytes > part:
            with source.open("rb") as file:
                chunks = sent.counted(iter(lambda: file.read(part), b""))
                if self._files().quick.put(*self._object(path), chunks, part):
                    return
        super()._put(source, path, sent, chunksize=part, max_concurrency=PARTS_AHEAD, **more)

    def _object(self, path: str) -> tuple[str, str]:
        bucket, _, key = f"{self._root}/{checked_path(self._url, path)}".partition("/")
        return bucket, key


class S3Files(S3FileSystem):  # type: ignore[misc]
    """s3fs with repeated requests, and with errors that state the next step."""

    retries = 1
    """s3fs itself tries once."""

    def __init__(self, options: StoreOptions, **more: Any) -> None:
        super().__init__(**more)
        self._options = options

    def pages(self, bucket: str, prefix: str, after: str) -> Iterator[list[dict[str, Any]]]:
        """Yield objects whose names begin with `prefix` and follow `after`, up to 1,000 at once."""
        more = {"StartAfter": after} if after else {}
        while True:
            request = {"Bucket": bucket, "Prefix": prefix, **more}
            page = sync(self.loop, self._call_s3, "list_objects_v2", **request)
            found = page.get("Contents", [])
            yield [{"name": f"{bucket}/{one['Key']}", "size": one["Size"], **one} for one in found]
            if not page["IsTruncated"]:
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def remove_all(
        self, bucket: str, prefix: str, listing: str, kinds: Sequence[str], removal: str, key: str
    ) -> None:
        """Send a request for each entry of a listing; none if the server does not have it."""

        async def listed() -> Any:
            pages = self.s3.get_paginator(listing).paginate(Bucket=bucket, Prefix=prefix)
            try:
                return await pages.build_full_result()
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] in _NOT_LISTED:
                    return {}
                raise translate_boto_error(error) from error

        found = sync(self.loop, self._retried, listed, f"{bucket}/{prefix}")
        for one in chain.from_iterable(found.get(kind, ()) for kind in kinds):
            if one["Key"].startswith(prefix):  # some servers list all uploads
                request = {"Bucket": bucket, "Key": one["Key"], key: one[key]}
                sync(self.loop, self._call_s3, removal, **request)

    @cached_property
    def quick(self) -> Quick:
        """Return the faster implementation for common requests."""
        meta = self.s3.meta
        return Quick(meta.endpoint_url, meta.region_name, self._options)

    def split_path(self, path: str) -> tuple[str, str, None]:
        """Return bucket and key, literally: s3fs would read the end of some names as a version."""
        bucket, _, key = path.partition("/")
        return bucket, key, None

    async def _call_s3(self, method: str, *more: Any, **request: Any) -> Any:
        if method == "head_object":
            found = await asyncio.to_thread(self.quick.head, request["Bucket"], request["Key"])
            if found is not None:
                return found
        if "Body" in request:
            request["ContentMD5"] = await asyncio.to_thread(_md5, request["Body"])
        send = partial(super()._call_s3, method, *more, **request)
        return await self._retried(send, "/".join((request["Bucket"], request.get("Key", ""))))

    async def _cat_file(self, path: str, *more: Any, **span: Any) -> bytes:
        read = partial(super()._cat_file, path, *more, **span)
        return await self._retried(read, path)  # type: ignore[no-any-return]

    async def _retried(self, call: Any, path: str) -> Any:
        where = _place(f"s3://{path.rstrip('/')}", self._options)
        return await retried(call, where, self._options.max_attempts)


def _connect(options: StoreOptions) -> S3Files:
    where = _place("s3://", options)
    try:
        session = AioSession(profile=options.profile)
        region = options.region or session.get_config_variable("region") or _DEFAULT_REGION
        files = S3Files(
            options,
            anon=options.anonymous,
            endpoint_url=options.endpoint_url,
            session=session,
            client_kwargs={"region_name": region},
            config_kwargs=_config(options),
            max_concurrency=1,  # of parts of one read: `read` itself decides on parts
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        endpoint_url = files.s3.meta.endpoint_url
    except BotoCoreError as error:
        raise explained(error, where) from error
    except ValueError as error:  # botocore's error for a malformed endpoint
        raise StoreAccessError(
            f"'{where.endpoint}' is not an S3 endpoint", "Valid: http://host:port or https://host."
        ) from error
    if "@" in urlsplit(endpoint_url).netloc:
        raise StoreAccessError(
            "The endpoint of S3 contains a user or password",
            "Give credentials in the environment (AWS_ACCESS_KEY_ID, ...) or in a profile.",
        )
    return files


def _place(url: str, options: StoreOptions) -> S3Request:
    """Return what errors of requests about a URL name; never a secret."""
    profile = options.profile or os.environ.get("AWS_PROFILE")
    identity = f"profile '{profile}'" if profile else "the environment's credentials"
    endpoint = options.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3")
    return S3Request(
        url=url,
        endpoint=without_secrets(endpoint or os.environ.get("AWS_ENDPOINT_URL") or "AWS"),
        identity="no credentials" if options.anonymous else identity,
    )


def _config(options: StoreOptions) -> dict[str, Any]:
    return {
        "signature_version": "s3v4",
        "connect_timeout": min(options.timeout, _CONNECT_TIMEOUT_S),
        "read_timeout": options.timeout,
        "max_pool_connections": options.connections,
        "retries": {"total_max_attempts": 1},
        "s3": {"addressing_style": options.addressing},
        "tcp_keepalive": True,
        # servers other than AWS may not know these checksums; uploads carry an MD5 instead
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
