"""YAML that is made to hold its reader up is refused before anything is built from it."""

from __future__ import annotations

import pytest
import yaml

from headrace.errors import RecipeError, SiteError
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.yaml_text import MAX_CHARS, MAX_DEPTH, MAX_VALUES, parsed

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
"""Nine levels of nine: 400 million values once the aliases are followed."""

HOSTILE = {
    "alias-bomb": (BOMB, "more than 10000 values, aliases counted in full"),
    "merge-bomb": (
        "a0: &a0 {k: 1}\n"
        + "".join(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}\n" for i in range(1, 30)),
        "more than 10000 values",
    ),
    "brackets": (f"a: {'[' * 100_000}", "more than 32 lists and mappings inside one another"),
    "braces": (f"a: {'{a: ' * 20_000}", "more than 32 lists and mappings"),
    "dashes": ("- " * 100_000, "more than 32 lists and mappings"),
    "indents": ("".join(f"{' ' * i}a:\n" for i in range(600)), "more than 32 lists"),
    "long": (f"a: {'# x' * MAX_CHARS}", "at most 262144 are read"),
    "many": ("".join(f"k{i}: 1\n" for i in range(MAX_VALUES)), "more than 10000 values"),
    "long-value": (f"a: {'x' * 20_000}", "a value of 20000 characters"),
    "long-number": (f"a: {'1' * 5000}", "4300 digits"),
    "in-itself": ("a: &a [*a]", "stands inside what it stands for"),
    "pairs": ("a: !!pairs [x: 1]", "the tag 'tag:yaml.org,2002:pairs'"),
    "path": ("a: !!python/object/apply:pathlib.Path [/]", "the tag"),
    "renamed-tag": ("%TAG ! tag:yaml.org,2002:\n---\na: !omap [x: 1]", "the tag"),
    "documents": ("a: 1\n---\n" * 3, "another document"),
    "scalar": ("1", "a single value"),
}


@pytest.mark.parametrize(("text", "words"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused_by_a_named_error(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=words) as caught:
        load_recipe(str(path))
    assert len(str(caught.value)) < 1000
    with pytest.raises(SiteError, match=words):
        load_site(str(path))


def test_no_more_is_read_than_shows_that_it_is_too_much(monkeypatch):
    """The alias bomb took 14 s: its cost is counted in events, not in seconds."""
    taken = []
    get_event = yaml.SafeLoader.get_event
    counted = lambda loader: taken.append(get_event(loader)) or taken[-1]  # noqa: E731
    monkeypatch.setattr(yaml.SafeLoader, "get_event", counted)
    for name in ("alias-bomb", "brackets", "dashes", "many"):
        taken.clear()
        with pytest.raises(yaml.YAMLError):
            parsed(HOSTILE[name][0])
        assert 0 < len(taken) <= MAX_VALUES + MAX_DEPTH, name


def test_aliases_and_merge_keys_of_ordinary_size_are_read():
    text = "base: &base {lr: 1e-3, sizes: [1, 2]}\nmodel: {<<: *base, depth: !!int '3'}\nb: *base"
    assert parsed(text)["model"] == {"lr": 1e-3, "sizes": [1, 2], "depth": 3}
    with pytest.raises(yaml.YAMLError, match="anchor or alias 'base'"):
        parsed(text, is_plain=True)


def test_an_override_may_refer_to_other_keys(tmp_path):
    recipe = load_recipe("digits", ["seed=${trainer.max_epochs}", "trainer.max_epochs=4"])
    assert recipe.seed == 4


def test_what_is_done_to_the_values_changes_no_later_ones():
    text = "a: [1]"
    parsed(text)["a"].append(2)
    assert parsed(text) == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "words"),
    {
        "numbers": ("dims: {1: a, 1: b}", "the key 1 is there twice"),
        "true-is-1": ("dims: {1: a, true: b}", "the key True is there twice"),
        "1.0-is-1": ("dims: {1: a, 1.0: b}", "the key 1.0 is there twice"),
        "texts": ("dims: {a: 1, 'a': 2}", "there twice|duplicate key"),
        "joined": (r'dims: {"\ud83d\ude00": 1, "😀": 2}', "is there twice"),
        "lone": (r'name: "\ud800"', "half of a character"),
        "lone-key": (r'{"\udc00": 1}', "half of a character"),
        "swapped": (r'name: "\ude00\ud83d"', "half of a character"),
        "no-bool": ("dims: !!bool x", "none of its tag"),
        "no-int": ("dims: !!int ''", "none of its tag"),
        "no-float": ("dims: !!float ''", "none of its tag"),
        "no-number": ("dims: !!int x", "invalid literal"),
    }.values(),
)
def test_what_yaml_would_lose_or_break_on_is_refused(tmp_path, text, words):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    for load, error in ((load_recipe, RecipeError), (load_site, SiteError)):
        with pytest.raises(error, match=words):
            load(str(path))


def test_merged_keys_are_no_duplicates_and_pairs_of_surrogates_are_one_character():
    assert parsed("a: &a {1: x}\nb: {<<: *a, 1: y}\nc: {=: 1}")["b"] == {1: "y"}
    assert parsed(r'a: "x\ud83d\ude00"') == {"a": "x😀"}
