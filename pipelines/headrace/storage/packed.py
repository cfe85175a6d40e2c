"""Manifests of packed datasets, wherever these lie."""

from __future__ import annotations

from headrace.errors import StoreMissingError
from headrace.recipe.site import StoreOptions
from headrace.storage.manifest import Manifest
from headrace.storage.manifest_file import FILE_NAME, no_dataset, parse_manifest
from headrace.storage.store import open_store


def read_manifest_at(location: str, options: StoreOptions | None = None) -> Manifest:
    """Read the manifest of a dataset.

    Args:
        location: Its folder or URL.
        options: How to reach S3.

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
