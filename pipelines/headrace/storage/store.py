"""Where files of sources and datasets lie: a folder or an S3 prefix, behind one narrow protocol."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from headrace.errors import UserError, without_secrets
from headrace.recipe.site import StoreOptions
from headrace.storage.store_local import LocalStore
from headrace.storage.store_protocol import Store, StoredFile

__all__ = ["Store", "StoreOptions", "StoredFile", "below", "is_remote", "open_store"]


def is_remote(url: str) -> bool:
    """Whether a location is an S3 URL rather than a local path."""
    return url.startswith("s3://")


def open_store(url: str, options: StoreOptions | None = None) -> Store:
    """The store at a location; nothing is connected or checked yet.

    Args:
        url: `s3://bucket/prefix`, `file:///folder` or a path.
        options: How to reach S3; defaults when None.

    Raises:
        UserError: The URL has another scheme or names no bucket.
    """
    if "://" not in url:
        return LocalStore(url)
    parts = urlsplit(url)
    if without_secrets(url) != url:
        raise UserError(
            f"A URL of scheme {parts.scheme}:// holds credentials",
            "Give them in the environment (AWS_ACCESS_KEY_ID, ...) or a profile, never in a URL.",
        )
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalStore(unquote(parts.path))
    if parts.scheme == "s3" and parts.netloc:
        from headrace.storage.store_s3 import S3Store

        return S3Store(url, options or StoreOptions())
    what = "names no bucket" if parts.scheme == "s3" else "cannot be opened as a store"
    raise UserError(f"'{url}' {what}", "Valid: s3://bucket/prefix, file:///folder, or a path.")


def below(url: str, *names: str) -> str:
    """Location of something below a location: `s3://bucket/a` and `b` give `s3://bucket/a/b`."""
    return "/".join((url.rstrip("/"), *names))
