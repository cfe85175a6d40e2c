"""The fast way to match file names gives what the patterns say."""

import pytest

from headrace.packing.sources.files import any_of, matcher

PATHS = ("a.png", "b/c.PNG", "d.png/e", "d.png/e.jpg", "png", "x.pngs", "x.png.txt", "a/b.tar.gz")


@pytest.mark.parametrize(
    "globs",
    [
        ("**/*.png",),
        ("**/*.PNG", "**/*.jpg"),
        ("**/*.png", "**/*.png"),
        ("*.png",),
        ("**/*.png", "b/*"),
        ("**/*.tar.gz",),
        ("**/*.p?g",),
        (),
    ],
)
def test_matcher_is_the_pattern(globs: tuple[str, ...]) -> None:
    matches, pattern = matcher(globs), any_of(globs)
    for path in PATHS:
        assert bool(matches(path)) == bool(pattern.fullmatch(path)), path
