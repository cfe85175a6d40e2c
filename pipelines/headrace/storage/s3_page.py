"""One page of a listing of S3, out of its XML."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET


class Listed(NamedTuple):
    """An object of a listing."""

    key: str
    """Its name."""
    num_bytes: int
    """Size."""
    etag: str
    """The ETag, in quotes."""


class Page(NamedTuple):
    """Up to 1,000 objects."""

    files: list[Listed]
    """The objects."""
    token: str
    """Where the next page begins; empty for the last one."""


def parse_page(content: bytes) -> Page | None:
    """The page in an answer to ListObjectsV2; None when it is something else, or was cut."""
    try:
        root = ET.fromstring(content)
        prefix = root.tag.rpartition("}")[0]
        space = f"{prefix}}}" if prefix else ""
        if root.tag != f"{space}ListBucketResult" or root.find(f"{space}IsTruncated") is None:
            return None
        decoded = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
        names = (f"{space}Key", f"{space}Size", f"{space}ETag")
        texts = [[entry.findtext(n, "") for n in names] for entry in root.iter(f"{space}Contents")]
        files = [Listed(decoded(key), int(size), etag) for key, size, etag in texts]
        more = root.findtext(f"{space}IsTruncated") == "true"
        token = root.findtext(f"{space}NextContinuationToken", "") if more else ""
    except (ET.ParseError, ValueError):
        return None
    return None if more and not token else Page(files, token)
