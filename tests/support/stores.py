"""Object stores for tests of what reads from them."""

from __future__ import annotations

import uuid
from pathlib import Path

from headrace.objects.protocol import Store
from headrace.objects.store import open_store


def afar(folder: Path) -> Store:
    """An object store that holds the files of a folder."""
    store = open_store(f"memory://{uuid.uuid4().hex}/some/prefix")
    for path in folder.rglob("*"):
        if path.is_file():
            store.upload(path, str(path.relative_to(folder)))
    return store
