"""An S3 prefix as a store."""

from __future__ import annotations

from headrace.recipe.site import StoreOptions


class S3Store:
    """An S3 prefix."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        self._url = url.rstrip("/")
        self._options = options
