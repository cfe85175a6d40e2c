"""Datasets of older releases keep their keys, unless their pixels or classes would differ."""

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from headrace.packing.opened_source import OpenedSource


def key_of(make_context, source: Path, pack: dict[str, Any] | None = None, **dataset: Any) -> str:
    context = make_context(source, dataset, pack)
    return OpenedSource.of(context.recipe, context.site, lambda: None).listed(lambda: None).key[:12]


def write(source: Path, suffix: str, *folders: str) -> Path:
    for number, folder in enumerate(folders):
        for name in ("1", "2"):
            path = source / folder / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), number).save(path, "PNG")
            os.utime(path, ns=(1, 1_000_000 + number))
    return source


KEYS = {
    "classes": ("887903da5fd7", ("cat", "dog"), {}, {}),
    "deeper": ("03872da66698", ("cat/a", "cat/b", "dog"), {}, {}),
    "one class": ("7cabeac4fb4f", ("cat",), {}, {}),
    "no labels": ("a84d6f0b943d", ("cat", "dog"), {"labels": "none"}, {}),
    "options": ("bbc5ee850660", ("cat", "dog"), {}, {"fields": {"image": {"resize": [2, 2]}}}),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_of_older_releases(tmp_path: Path, make_context, name: str) -> None:
    key, folders, dataset, pack = KEYS[name]
    assert key_of(make_context, write(tmp_path / "in", ".png", *folders), pack, **dataset) == key


def test_what_exif_may_turn_gets_another_key(tmp_path: Path, make_context) -> None:
    source = write(tmp_path / "in", ".jpg", "cat", "dog")
    as_before = key_of(make_context, source, {"fields": {"image": {"orientation": "keep"}}})
    assert as_before == "d533a9204284"
    assert key_of(make_context, source, {"fields": {"image": {}}}) != as_before
