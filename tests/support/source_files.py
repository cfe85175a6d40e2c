"""Content of files that datasets are made from, and such a source read to its end."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from headrace.packing.samples import Source
from headrace.packing.sources.open import open_source, with_format
from headrace.recipe.dataset import DatasetSpec


def png(shade: int, size: tuple[int, int] = (3, 2), mode: str = "L") -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, int(shade)).save(file, "PNG")
    return file.getvalue()


def npy(values: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(values))
    return file.getvalue()


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def wav(rate: int, shape: tuple[int, ...] = (100,)) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(shape), rate, format="WAV")
    return file.getvalue()


def write_tar(path: Path, files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def spec_of(source: Path | str, **more: object) -> DatasetSpec:
    return DatasetSpec.model_validate({"name": "x", "source": str(source), **more})


def read_all(spec: DatasetSpec, step: int = 1) -> tuple[Source, list[Any]]:
    """Values as a worker reads them: the source opened again, with what the listing found."""
    listed = open_source(spec)
    refs = listed.list_samples()[::step]
    return listed, list(open_source(with_format(spec), fields=listed.fields).read(refs))
