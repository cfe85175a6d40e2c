"""Where files of sources and datasets lie: a folder, or an object store."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

from headrace.errors import StoreMissingError, UserError, without_secrets
from headrace.files.manifest import Manifest
from headrace.files.manifest_file import FILE_NAME, no_dataset, parse_manifest
from headrace.objects.local import LocalStore
from headrace.objects.protocol import Store
from headrace.recipe.site import StoreOptions

_PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "hf": "huggingface_hub",
    "memory": "fsspec",
}
"""Schemes of object stores, and what opens each."""
_EXTRAS = {"gcsfs": "gs", "adlfs": "az", "huggingface_hub": "hf"}


def is_remote(url: str) -> bool:
    """Whether a location is in an object store rather than in a folder."""
    return urlsplit(url).scheme in _PACKAGES and "://" in url


def open_store(url: str, options: StoreOptions | None = None) -> Store:
    """The store at a location; nothing is connected or checked yet.

    Args:
        url: `s3://bucket/prefix` or of another object store, `file:///folder` or a path.
        options: How to reach an object store; defaults when None.

    Raises:
        UserError: The URL has another scheme, names no bucket, or its package is not installed.
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
    if parts.scheme in _PACKAGES and parts.netloc:
        return _object_store(url, parts.scheme, options or StoreOptions())
    what = "names no bucket" if parts.scheme in _PACKAGES else "cannot be opened as a store"
    raise UserError(
        f"'{url}' {what}",
        "Valid: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, "
        "hf://datasets/owner/name, file:///folder, or a path.",
    )


def below(url: str, *names: str) -> str:
    """Location of something below a location: `s3://bucket/a` and `b` give `s3://bucket/a/b`."""
    return "/".join((url.rstrip("/"), *names))


def check_package(url: str) -> None:
    """Refuse the URL of an object store whose Python package is not installed here.

    Raises:
        UserError: It is not; names the extra that brings it.
    """
    package = _PACKAGES.get(urlsplit(url).scheme)
    if package is not None and find_spec(package) is None:
        raise UserError(
            f"'{url}' needs the package {package}, which is not installed",
            f"pip install 'headrace[{_EXTRAS[package]}]' here and on every node.",
        )


def read_manifest_at(location: str, options: StoreOptions | None = None) -> Manifest:
    """Read the manifest of a dataset at a folder or URL.

    Raises:
        ManifestError: There is none, it is damaged, or a newer release wrote it.
        StoreError: The store cannot be read.
    """
    store = open_store(location, options)
    try:
        text = store.read(FILE_NAME)
    except StoreMissingError:
        raise no_dataset(location) from None
    return parse_manifest(text, f"{store.url}/{FILE_NAME}")


def _object_store(url: str, scheme: str, options: StoreOptions) -> Store:
    check_package(url)
    if scheme == "s3":
        from headrace.objects.s3 import S3Store

        return S3Store(url, options)
    from headrace.objects.fsspec_store import FsspecStore

    return FsspecStore(url, options)
