"""Folders of files: which files are samples, several files a sample, values, what changed."""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import DataError, RecipeError
from headrace.objects import store as stores
from headrace.objects.store import LocalStore
from headrace.packing.sample_table import SampleRef
from headrace.packing.samples import Unreadable
from headrace.packing.sources.open import open_source
from headrace.packing.sources.source_store import SourceStore
from headrace.recipe.dataset import DatasetSpec
from support.source_files import read_all, wav


def spec_of(folder: Path | str, **more: object) -> DatasetSpec:
    return DatasetSpec.model_validate(
        {"name": "x", "source": str(folder), "labels": "none", **more}
    )


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def found(folder: Path, *include: str) -> list[str]:
    spec = spec_of(folder, **({"include": include} if include else {}))
    return [ref.path for ref in open_source(spec).list_samples()]


def test_sorted_whatever_the_case_without_hidden(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.PNG", "a/x/1.jpg", "3.png", ".hidden.png", "b/.git/4.png", "b/5.txt")
    assert found(tmp_path) == ["3.png", "a/x/1.jpg", "b/2.PNG"]


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*.png", ["1.png", "a+b.png"]),
        ("*/*.png", ["a/2.png"]),
        ("a/**", ["a/2.png", "a/b/3.png"]),
        ("**/[23].png", ["a/2.png", "a/b/3.png"]),
        ("**/[!2].png", ["1.png", "a/b/3.png"]),
        ("?.png", ["1.png"]),
        ("a+b.png", ["a+b.png"]),
    ],
)
def test_globs(tmp_path: Path, glob: str, expected: list[str]) -> None:
    touch(tmp_path, "1.png", "a/2.png", "a/b/3.png", "a+b.png")
    assert found(tmp_path, glob) == expected


def test_size_and_version(tmp_path: Path) -> None:
    touch(tmp_path, "1.png")
    os.utime(tmp_path / "1.png", ns=(5, 7))
    assert list(open_source(spec_of(tmp_path)).list_samples()) == [SampleRef("1.png", 5, "7")]


def test_links(tmp_path: Path) -> None:
    source = touch(tmp_path / "real", "1.png")
    (source / "2.png").symlink_to("1.png")
    (tmp_path / "link").symlink_to(source)
    assert found(tmp_path / "link") == ["1.png", "2.png"]
    (source / "3.png").symlink_to("gone.png")
    with pytest.raises(RecipeError, match="which is no file"):
        found(source)
    (source / "3.png").unlink()
    (source / "3.png").symlink_to(touch(tmp_path, "outside.png") / "outside.png")
    with pytest.raises(RecipeError, match=r"3\.png is a link that leaves .*outside\.png"):
        found(source)
    (source / "3.png").unlink()
    (touch(source, "a/1.png") / "b").symlink_to(source / "a")
    with pytest.raises(RecipeError, match="Links to folders are not followed"):
        found(source)


@pytest.mark.parametrize("waits", [0, 1000], ids=["at once", "by threads"])
def test_many_files_come_in_order(tmp_path, monkeypatch, waits):
    """On a server each stat waits: then threads do it (`waits` more are told at each question)."""
    told = itertools.count(step=waits)
    monkeypatch.setattr(stores, "_num_waits", lambda: next(told))
    names = [f"{a}{b}/{number:04d}.png" for a, b in ("a-", "a.", "ab") for number in range(700)]
    names += [f"a-/{number:05d}.png" for number in range(2000)]
    num_open = len(os.listdir("/proc/self/fd"))
    listed = open_source(spec_of(touch(tmp_path, *names))).list_samples()
    assert [ref.path for ref in listed] == sorted(names)
    assert [ref.num_bytes for ref in listed] == [len(name) for name in sorted(names)]
    assert len(os.listdir("/proc/self/fd")) <= num_open


def test_files_come_while_the_folder_is_still_read(tmp_path: Path) -> None:
    """Of millions of files the first come at once, and the listing can be stopped in between."""
    touch(tmp_path, *(f"{number:04d}.png" for number in range(2000)))
    checks: list[int] = []
    num_open = len(os.listdir("/proc/self/fd"))
    files = SourceStore(LocalStore(str(tmp_path))).names(lambda: checks.append(1))
    assert next(files).endswith(".png")
    assert len(checks) == 1
    del files
    assert len(os.listdir("/proc/self/fd")) <= num_open


def test_check_may_stop_the_listing(tmp_path: Path) -> None:
    touch(tmp_path, "1.png")

    def stop() -> None:
        raise RecipeError("stopped")

    with pytest.raises(RecipeError, match="stopped"):
        open_source(spec_of(tmp_path)).list_samples(stop)


@pytest.mark.parametrize("gone", ["a", "b", "c.png"])
def test_what_vanishes_while_it_is_listed_is_told(tmp_path: Path, gone: str) -> None:
    """A folder that is written to meanwhile is no dataset yet."""
    source = touch(tmp_path, "a/1.png", "b/1.png", "c.png")
    num_open = len(os.listdir("/proc/self/fd"))

    def vanish() -> None:
        if (source / gone).exists():
            (source / gone).rename(tmp_path.parent / f"gone-{tmp_path.name}")

    with pytest.raises(DataError, match=f"{gone}/?' cannot be listed: No such file"):
        open_source(spec_of(source)).list_samples(vanish)
    assert len(os.listdir("/proc/self/fd")) <= num_open


SOUND = wav(16_000)


@pytest.mark.parametrize(
    ("name", "content", "kind", "value"),
    [
        ("a.jpg", b"any", "image", b"any"),
        ("a.wav", SOUND, "audio", SOUND),
        ("a.bin", b"any", "bytes", b"any"),
        ("a.txt", "\ufeffhällo".encode(), "text", "hällo"),
        ("a.json", b'{"a": 1}', "text", '{"a": 1}'),
    ],
)
def test_values_by_ending(tmp_path, name, content, kind, value):
    (tmp_path / name).write_bytes(content)
    source, values = read_all(spec_of(tmp_path, include=["*"]))
    assert values == [{kind: value}]
    (field,) = source.fields
    assert (field.name, field.kind) == (kind, kind)
    assert field.encoding == ("json" if name.endswith("json") else "")


PAIRS = {"image": "*.jpg", "mask": "*_mask.png", "caption": "*.txt"}


def test_several_files_a_sample(tmp_path: Path) -> None:
    touch(tmp_path, *(f"a/{n}{end}" for n in (1, 2) for end in (".jpg", "_mask.png", ".txt")))
    source, values = read_all(spec_of(tmp_path, fields=PAIRS, labels="folders"))
    assert [(f.name, f.kind) for f in source.fields] == [
        ("image", "image"), ("mask", "image"), ("caption", "text"),
    ]  # fmt: skip
    refs = source.list_samples()
    assert [(ref.path, ref.label, ref.num_bytes) for ref in refs] == [
        ("a/1.jpg", "a", 7 + 12 + 7), ("a/2.jpg", "a", 7 + 12 + 7),
    ]  # fmt: skip
    assert values[1] == {"image": b"a/2.jpg", "mask": b"a/2_mask.png", "caption": "a/2.txt"}
    (tmp_path / "a" / "2.txt").write_bytes(b"\xff")
    assert "caption: not UTF-8" in read_all(spec_of(tmp_path, fields=PAIRS))[1][1].reason


def test_several_files_in_folders_of_their_own(tmp_path: Path) -> None:
    touch(tmp_path, "images/x/1.png", "masks/x/1.png")
    fields = {"image": "images/*.png", "mask": "masks/*.png"}
    _, values = read_all(spec_of(tmp_path, fields=fields))
    assert values == [{"image": b"images/x/1.png", "mask": b"masks/x/1.png"}]


@pytest.mark.parametrize("pattern", ["**.jpg", "a*b*.jpg", "*/x*.jpg"])
def test_a_pattern_has_one_star(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(RecipeError, match=r"dataset\.fields\.image is .*\n.*one star"):
        open_source(spec_of(tmp_path, fields={"image": pattern}))


def test_a_file_that_may_not_be_read_is_set_aside(tmp_path, monkeypatch):
    touch(tmp_path, "1.png")
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:  # root may read everything
        if str(path).endswith("1.png"):
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    _, values = read_all(spec_of(tmp_path))
    assert values == [Unreadable("1.png", "it cannot be read: Permission denied")]


def test_texts_are_samples_where_nothing_else_is_and_never_beside_images(tmp_path: Path) -> None:
    texts = touch(
        tmp_path / "texts", "a/1.txt", "b/2.TXT", "a/readme.txt", "README.txt", "b/LICENSE-MIT.txt",
        "readmes.txt", "notes.md",
    )  # fmt: skip
    assert found(texts) == ["a/1.txt", "b/2.TXT", "readmes.txt"]
    listed, values = read_all(spec_of(texts))
    assert [(field.name, field.kind) for field in listed.fields] == [("text", "text")]
    assert values[0] == {"text": "a/1.txt"}
    assert found(texts, "**/*.txt") != found(texts)  # patterns that are written count as they are
    images = touch(tmp_path / "images", "a/1.png", "a/1.txt", "README.txt")
    assert found(images) == ["a/1.png"]
    only = touch(tmp_path / "only", "README.txt", "LICENSE.txt")
    with pytest.raises(RecipeError, match="None of the 2 files"):
        found(only)
