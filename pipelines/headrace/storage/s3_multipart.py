"""Upload of a large file to S3 in parts; readers see it when the last one is there."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.storage.s3_parallel import in_order
from headrace.storage.store_protocol import Tick

logger = logging.getLogger(__name__)

PART_BYTES = 16 * 2**20
"""Size of a part, and of the largest file that is sent in one request."""
_MAX_PARTS = 10_000
"""S3's limit."""
_PARTS_AHEAD = 6
"""With the parts' size, the memory that one upload takes: 96 MiB."""

Send = Callable[..., dict[str, Any]]
"""Called with the operation's name and its arguments but bucket and key; tries again itself."""


def part_size(num_bytes: int) -> int:
    """Bytes of a part so that a file has no more of them than S3 allows."""
    return max(PART_BYTES, -(-num_bytes // _MAX_PARTS))


def upload_parts(send: Send, pool: Executor, source: Path, tick: Tick | None) -> None:
    """Upload a file in parts, several at once.

    An upload that fails is taken back. One whose process is killed leaves invisible parts in the
    bucket; a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) removes those.

    Args:
        send: Sends a request about the file.
        pool: Runs the requests.
        source: The local file.
        tick: Called with the bytes of every part that was sent; may raise to stop.
    """
    upload_id = send("create_multipart_upload")["UploadId"]
    try:
        parts = _send_parts(send, pool, source, upload_id, tick)
        send("complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts})
    except BaseException:
        _take_back(send, upload_id)
        raise


def _send_parts(
    send: Send, pool: Executor, source: Path, upload_id: str, tick: Tick | None
) -> list[dict[str, Any]]:
    with source.open("rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        size = part_size(num_bytes)

        def send_part(start: int) -> tuple[dict[str, Any], int]:
            body = os.pread(file.fileno(), size, start)
            md5 = hashlib.md5(body, usedforsecurity=False).digest()
            number = start // size + 1
            answer = send(
                "upload_part",
                UploadId=upload_id,
                PartNumber=number,
                Body=body,
                ContentMD5=base64.b64encode(md5).decode(),
            )
            return {"PartNumber": number, "ETag": answer["ETag"]}, len(body)

        look = None if tick is None else (lambda: tick(0))
        parts = []
        for part, sent in in_order(pool, send_part, range(0, num_bytes, size), _PARTS_AHEAD, look):
            parts.append(part)
            if tick is not None:
                tick(sent)
        return parts


def _take_back(send: Send, upload_id: str) -> None:
    try:
        send("abort_multipart_upload", UploadId=upload_id)
    except HeadraceError as error:  # the failure of the upload itself is what the caller must see
        logger.warning("The parts of an upload that failed stay in the bucket: %s", error.what)
