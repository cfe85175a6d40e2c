"""What trainings of this folder have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.training import write_blobs


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blobs; a file whose trainings want others has a fixture of this name."""
    folder = tmp_path_factory.mktemp("blobs") / "dataset"
    write_blobs(folder)
    return folder
