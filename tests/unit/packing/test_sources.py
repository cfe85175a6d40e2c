"""Which files are samples, and what is said when none is."""

import os
from pathlib import Path

import pytest

from headrace.errors import RecipeError
from headrace.packing.sources import list_sources, open_source

ALL = ("**/*.png", "**/*.jpg")


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def found(folder: Path, *include: str) -> list[str]:
    return [file.path for file in list_sources(folder, include)]


def test_sorted_whatever_the_case_without_hidden(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.PNG", "a/x/1.jpg", "3.png", ".hidden.png", "b/.git/4.png", "b/5.txt")
    assert found(tmp_path, *ALL) == ["3.png", "a/x/1.jpg", "b/2.PNG"]


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


def test_size_and_time(tmp_path: Path) -> None:
    touch(tmp_path, "1.png")
    os.utime(tmp_path / "1.png", ns=(5, 7))
    (file,) = list_sources(tmp_path, ALL)
    assert (file.num_bytes, file.mtime_ns) == (5, 7)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"/no does not exist\n.*dataset\.source"):
        open_source(str(tmp_path / "no"))
    with pytest.raises(RecipeError, match="is a file"):
        open_source(str(touch(tmp_path, "f") / "f"))


def test_empty_folder_names_the_patterns(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"is empty\n.*\*\*/\*\.png, \*\*/\*\.jpg"):
        list_sources(tmp_path, ALL)


def test_no_match_names_folder_and_patterns(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt", "b.tif")
    with pytest.raises(RecipeError, match=r"None of the 2 files .*dataset\.include: \*\*/\*\.png"):
        list_sources(tmp_path, ALL)


def test_link_that_leaves_is_refused(tmp_path: Path) -> None:
    outside = touch(tmp_path, "outside.png") / "outside.png"
    source = touch(tmp_path / "source", "1.png")
    (source / "link.png").symlink_to(outside)
    with pytest.raises(RecipeError, match=r"link\.png is a link that leaves .*outside\.png"):
        list_sources(source, ALL)


def test_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    source = touch(tmp_path / "source", "a/1.png")
    (source / "b").symlink_to(source / "a")
    with pytest.raises(RecipeError, match="Links to folders are not followed"):
        list_sources(source, ALL)


def test_links_inside_and_the_source_as_a_link_are_fine(tmp_path: Path) -> None:
    source = touch(tmp_path / "real", "1.png")
    (source / "2.png").symlink_to("1.png")
    (tmp_path / "link").symlink_to(source)
    assert found(tmp_path / "link", *ALL) == ["1.png", "2.png"]
    (source / "3.png").symlink_to("gone.png")
    with pytest.raises(RecipeError, match="which is no file"):
        list_sources(source, ALL)


def test_check_may_stop_the_listing(tmp_path: Path) -> None:
    touch(tmp_path, "1.png")

    def stop() -> None:
        raise RecipeError("stopped")

    with pytest.raises(RecipeError, match="stopped"):
        list_sources(tmp_path, ALL, stop)


def test_name_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.png")).write_bytes(b"")
    with pytest.raises(RecipeError, match="is not UTF-8"):
        list_sources(tmp_path, ALL)
