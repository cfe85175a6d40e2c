"""Paths are matched as the patterns say, and soon, whatever the pattern is."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.errors import RecipeError
from headrace.recipe.globs import any_of, matcher
from headrace.recipe.load import load_recipe

PATHS = ("a.png", "b/c.PNG", "d.png/e", "d.png/e.jpg", "png", "x.pngs", "x.png.txt", "a/b.tar.gz")
_SPECIAL = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


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
def test_the_fast_way_gives_what_the_patterns_say(globs):
    matches, pattern = matcher(globs), any_of(globs)
    for path in PATHS:
        assert matches(path) == pattern(path), path


def _meant(glob: str) -> re.Pattern[str]:
    """The pattern as a regular expression of Python's, which backtracks."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", glob)
    sets = (
        f"[{'^' * (part[1] == '!')}{part[1 + (part[1] == '!') : -1]}]"
        if part[:1] == "[" and part[-1:] == "]"
        else _SPECIAL.get(part, re.escape(part))
        for part in parts
    )
    return re.compile("".join(sets), re.IGNORECASE)


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@settings(max_examples=500, deadline=None)
@given(st.text("abA/*?[]!-.# é\n$", max_size=8), st.text("abAB/.-![] #é\n", max_size=8))
def test_short_patterns_match_as_regular_expressions_do(glob, path):
    assume(not {"[]", "[!]"} & {glob[i : i + n] for i in range(8) for n in (2, 3)})  # no sets
    assume("--" not in glob)  # of which Python and Rust make different sets
    try:
        meant = _meant(glob)
    except re.error:
        with pytest.raises(ValueError, match="is not a glob pattern"):
            any_of([glob])
    else:
        assert any_of([glob])(path) == bool(meant.fullmatch(path))


def test_a_name_that_is_no_utf_8_is_matched_by_wildcards():
    assert any_of(["a/*.x"])("a/\udcff.x")
    assert not any_of(["b/*.x"])("a/\udcff.x")


@pytest.mark.parametrize("glob", ["*a" * 40, "**/" * 80, "?*" * 100, "**a" * 80])
def test_a_pattern_takes_as_long_as_its_path_is(glob):
    """Python's `re` would not end within years."""
    matches, began = any_of([glob]), time.process_time()
    assert not any(matches("a" * 30 * length + "/b\n") for length in range(100))
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("include", "words"),
    [
        ("['[z-a]']", r"'\[z-a\]' is not a glob pattern"),
        (f"['**/*.png', '{'a' * 300}']", "at most 256 characters"),
        (str(["x"] * 300), "at most 256 entries"),
    ],
)
def test_what_is_no_pattern_is_refused_before_anything_starts(include, words):
    with pytest.raises(RecipeError, match=words) as caught:
        load_recipe("digits", [f"dataset.include={include}"])
    assert len(str(caught.value)) < 10_000
