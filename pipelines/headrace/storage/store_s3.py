"""An S3 prefix as a store."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import xxhash
from botocore.exceptions import ClientError, IncompleteReadError

from headrace.errors import (
    DataError,
    StoreAccessError,
    StoreChangedError,
    StoreMissingError,
)
from headrace.recipe.site import StoreOptions
from headrace.storage.s3_client import S3Connection, connection, forget, place
from headrace.storage.s3_errors import retried
from headrace.storage.s3_get import Answer
from headrace.storage.s3_multipart import PART_BYTES, upload_parts
from headrace.storage.s3_page import Listed, Page
from headrace.storage.s3_parallel import in_order
from headrace.storage.store_protocol import StoredFile, Tick, checked_path

Result = TypeVar("Result")

_PIECE_BYTES = 8 * 2**20
_PIECES_AHEAD = 12
"""With the pieces' size, the memory that one download takes: 96 MiB."""

_ALWAYS_THERE = {
    "list_objects_v2": "IsTruncated",
    "create_multipart_upload": "UploadId",
    "complete_multipart_upload": "ETag",
    "upload_part": "ETag",
}
"""What an answer holds; botocore takes one that was cut before its body for an empty one."""


class _Piece(NamedTuple):
    """An answer to GET."""

    content: bytes
    version: str


class S3Store:
    """A prefix of a bucket.

    Requests that fail in a way that may pass are sent again; see `s3_errors.retried`.

    Args:
        url: `s3://bucket/prefix`; whatever comes after the bucket is taken literally.
        options: How to reach the server.
    """

    def __init__(self, url: str, options: StoreOptions) -> None:
        self._url = url.rstrip("/")
        self._bucket, _, prefix = self._url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = options

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return self._url

    def list_files(self, check: Callable[[], None] | None = None) -> Iterator[StoredFile]:
        """All files below the prefix; see `Store.list_files`."""
        page = Page([], "")
        skipped = len(self._prefix)
        while True:
            if check is not None:
                check()
            page = self._page(page.token)
            for key, num_bytes, etag in page.files:
                path = key[skipped:]
                if path and not path.endswith("/") and not _hidden(path):
                    yield StoredFile(path, num_bytes, _bare(etag))
            if not page.token:
                return

    def stat(self, path: str) -> StoredFile | None:
        """The file as it is now; see `Store.stat`."""
        try:
            head = self._about(path, "head_object")
        except StoreMissingError:
            return None
        return StoredFile(path, head["ContentLength"], _bare(head["ETag"]))

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes of a file; see `Store.read`."""
        if end is not None and end <= start:
            self._existing(path)
            return b""
        return self._get(path, start, end).content

    def read_many(
        self, paths: Sequence[str], versions: Sequence[str] | None = None
    ) -> list[bytes | DataError]:
        """Whole files; see `Store.read_many`."""
        wanted = list(zip(paths, versions or [""] * len(paths), strict=True))
        step = self._options.connections  # each takes every step-th file: less to hand about
        groups = [wanted[start::step] for start in range(min(step, len(wanted)))]
        found: list[bytes | DataError] = [b""] * len(wanted)
        parts = in_order(self._connection().pool, self._read_some, groups, step + 1)
        for start, part in enumerate(parts):
            found[start::step] = part
        return found

    def download(self, path: str, target: Path, tick: Tick | None = None) -> str:
        """Copy a file out of the bucket; see `Store.download`."""
        found = self._existing(path)
        state = xxhash.xxh3_128()
        try:
            with target.open("wb", buffering=0) as file:
                for content in self._pieces(found, tick):
                    state.update(content)
                    _write_all(file.fileno(), content)
                    if tick is not None:
                        tick(len(content))
                os.fsync(file.fileno())
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return state.hexdigest()

    def upload(self, source: Path, path: str, tick: Tick | None = None) -> None:
        """Copy a file into the bucket; see `Store.upload`."""
        if source.stat().st_size <= PART_BYTES:
            content = source.read_bytes()
            self.write(path, content)
            if tick is not None:
                tick(len(content))
            return
        send = partial(self._about, path)
        upload_parts(send, self._connection().pool, source, tick)

    def write(self, path: str, content: bytes) -> None:
        """Replace a file; see `Store.write`."""
        md5 = base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
        self._about(path, "put_object", Body=content, ContentMD5=md5)

    def delete(self, path: str) -> None:
        """Remove a file; see `Store.delete`."""
        try:
            self._about(path, "delete_object")
        except StoreMissingError:  # servers other than AWS may say so
            return

    def _page(self, token: str) -> Page:
        page = self._connection().quick.list_page(self._bucket, self._prefix, token)
        if page is not None:
            return page
        more = {"ContinuationToken": token} if token else {}
        found = self._send(self._url, "list_objects_v2", Prefix=self._prefix, **more)
        entries = found.get("Contents", ())
        files = [Listed(entry["Key"], entry["Size"], entry["ETag"]) for entry in entries]
        return Page(files, found["NextContinuationToken"] if found["IsTruncated"] else "")

    def _existing(self, path: str) -> StoredFile:
        found = self.stat(path)
        if found is None:
            raise StoreMissingError(f"There is no file {self._url}/{path}")
        return found

    def _pieces(self, found: StoredFile, tick: Tick | None) -> Iterator[bytes]:
        def read(start: int) -> bytes:
            piece = self._get(found.path, start, min(start + _PIECE_BYTES, found.num_bytes))
            if piece.version != found.version:
                raise self._changed(found.path)
            return piece.content

        starts = range(0, found.num_bytes, _PIECE_BYTES)
        look = None if tick is None else partial(tick, 0)
        return in_order(self._connection().pool, read, starts, _PIECES_AHEAD, look)

    def _read_some(self, wanted: Sequence[tuple[str, str]]) -> list[bytes | DataError]:
        return [self._read_one(each) for each in wanted]

    def _read_one(self, wanted: tuple[str, str]) -> bytes | DataError:
        path, version = wanted
        try:
            piece = self._get(path)
        except StoreMissingError as error:
            return error
        return piece.content if version in ("", piece.version) else self._changed(path)

    def _changed(self, path: str) -> StoreChangedError:
        return StoreChangedError(f"{self._url}/{path} has changed since it was listed")

    def _get(self, path: str, start: int = 0, end: int | None = None) -> _Piece:
        span = "" if start == 0 and end is None else _range(start, end)
        answer = self._connection().quick.get(self._bucket, self._key(path), span)
        if answer is None:
            answer = self._retried(f"{self._url}/{path}", partial(self._careful_get, path, span))
        content = answer.content
        if span and not answer.ranged:  # a server that does not know ranges
            content = content[start:end]
        return _Piece(content, _bare(answer.etag))

    def _careful_get(self, path: str, span: str, found: S3Connection) -> Answer:
        request = {"Range": span} if span else {}
        try:
            answer = found.client.get_object(Bucket=self._bucket, Key=self._key(path), **request)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 416:
                return Answer(b"", "", ranged=True)  # starts behind the end
            raise
        with closing(answer["Body"]) as body:
            return Answer(body.read(), answer["ETag"], "ContentRange" in answer)

    def _about(self, path: str, operation: str, **request: Any) -> dict[str, Any]:
        """Send a request about one file."""
        return self._send(f"{self._url}/{path}", operation, Key=self._key(path), **request)

    def _send(self, url: str, operation: str, **request: Any) -> dict[str, Any]:
        request.setdefault("Bucket", self._bucket)

        def send(found: S3Connection) -> dict[str, Any]:
            answer = getattr(found.client, operation)(**request)
            if _ALWAYS_THERE.get(operation, "ResponseMetadata") not in answer:
                raise IncompleteReadError(actual_bytes=0, expected_bytes=1)
            return answer  # type: ignore[no-any-return]

        return self._retried(url, send)

    def _retried(self, url: str, call: Callable[[S3Connection], Result]) -> Result:
        where = place(url, self._options)
        try:
            return retried(lambda: call(self._connection()), where, self._options.max_attempts)
        except StoreAccessError:
            forget(self._options)  # whoever mends the credentials need not restart the process
            raise

    def _connection(self) -> S3Connection:
        return connection(self._options)

    def _key(self, path: str) -> str:
        return self._prefix + checked_path(self._url, path)


def _range(start: int, end: int | None) -> str:
    return f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"


def _hidden(path: str) -> bool:
    return path.startswith(".") or "/." in path


def _bare(etag: str) -> str:
    return etag.strip('"')


def _write_all(handle: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
