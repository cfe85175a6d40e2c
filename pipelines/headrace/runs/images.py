"""The images of a run's containers, told apart without reading all of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.recipe.recipe import Recipe
from headrace.recipe.site import Site

UNSEEN = "not known"
"""Digest of an image that cannot be read from here."""

_PARTS, _PART_BYTES = 64, 2**16


def images_of(recipe: Recipe, site: Site) -> dict[str, str]:
    """Digests of the images that a run's containers are made of, by path; empty without any."""
    roles = (site.roles.get(name) for name in (recipe.pack_role, recipe.train.role))
    containers = (role.batch.container for role in roles if role is not None)
    return digests(each.image for each in containers if each is not None and each.runtime != "none")


def digests(images: Iterable[str]) -> dict[str, str]:
    """Digests of images as they lie now, by path."""
    return {image: _digest(Path(image).expanduser()) for image in dict.fromkeys(images)}


def _digest(image: Path) -> str:
    """Of a file its size and parts all over it, of a folder names, sizes and times of its files.

    Images in one file are compressed and begin with their time: another build differs everywhere.
    """
    found = hashlib.blake2b(digest_size=16)
    try:
        for each in _of_folder(image) if image.is_dir() else _of_file(image):
            found.update(each)
    except OSError:
        return UNSEEN
    return found.hexdigest()


def _of_file(image: Path) -> Iterator[bytes]:
    with image.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        yield str(size).encode()
        for number in range(_PARTS):
            file.seek(number * max(size - _PART_BYTES, 0) // (_PARTS - 1))
            yield file.read(_PART_BYTES)


def _of_folder(image: Path) -> Iterator[bytes]:
    for folder, folders, files in os.walk(image):
        folders.sort()
        for name in sorted((*files, *folders)):
            path = Path(folder, name)
            told = path.lstat()
            is_file = not path.is_dir() or path.is_symlink()
            what = (told.st_size, told.st_mtime_ns) if is_file else ()
            yield f"{path.relative_to(image)} {what}\n".encode(errors="surrogateescape")
