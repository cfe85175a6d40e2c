"""An S3 prefix as a store: s3fs, and obstore for what it does with less work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.storage.s3_files import connect
from headrace.storage.s3_quick import PARTS_AHEAD
from headrace.storage.sent import Sent
from headrace.storage.store_fsspec import PIECE_BYTES, FsspecStore, Piece
from headrace.storage.store_protocol import StoredFile, Tick, checked_path

_MAX_PARTS = 10_000
"""S3's limit."""


class S3Store(FsspecStore):
    """A prefix of a bucket; see `FsspecStore`.

    Requests that fail in a way that may pass are sent again; see `s3_errors.retried`. An upload
    that fails is taken back. One whose process is killed leaves invisible parts in the bucket; a
    lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes those.
    """

    def _open(self) -> Any:
        return connect(self._options)

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
        """Names of the bucket and the object."""
        bucket, _, key = f"{self._root}/{checked_path(self._url, path)}".partition("/")
        return bucket, key
