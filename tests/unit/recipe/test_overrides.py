"""An override means what Hydra makes of it; other texts stay as they are, or are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from headrace.errors import RecipeError
from headrace.recipe.difference import Change, differences
from headrace.recipe.load import load_recipe
from headrace.recipe.overrides import Override, apply, as_override, read_override
from headrace.recipe.untrusted_overrides import check_from_outside

READ_BY_HYDRA = (
    "12:30:45", "1:30", "007", "017", "0o17", "00", "-0", "+0", "+1", "-1", "off", "on", "yes",
    "no", "True", "TRUE", "false", "y", "1_000", "1__0", "0x1F", "0b1", "1e3", "1e-3", "12e+3",
    ".5", "+.5", "5.", "1_0.5", "1e", "null", "NULL", "None", "inf", "-inf", "nan", "NaN", ".inf",
    ".nan", "2024-01-01", "2024-01-01T00:00:00", '"quoted"', "'q'", "'1'", '"null"', "'a, b'",
    "'it\\'s'", '"a\\n"', "'a\\\\'", "[1,2]", "[]", "{}", "{a: 1}", "{a:1}", "{a: {b: [1, off]}}",
    "{0: 1, 1: 2}", "{0: 1, a: b}", "{true: 1, 1.5: 2}", "{off: 1}", "a:b", "a: b", "", " ", " a ",
    "a b", "http://x.y/z", "s3://b/p", "$x", "*.png", "@x", "%x", "|", "- x", "- 1", "?", "a?b",
    "a\\,b", "a\\=b", "int(3)", "str(3)", "[int(3)]", "sort([3, 1])", "1/2", "[0:3]", "'é'",
)  # fmt: skip
"""Values of which YAML makes something else, and some of which both make the same."""


@pytest.mark.parametrize("text", READ_BY_HYDRA)
def test_a_value_is_what_hydra_makes_of_it(text):
    wanted = OverridesParser.create().parse_override(f"key={text}").value()
    found = read_override(f"key={text}").value
    assert (type(found), repr(found)) == (type(wanted), repr(wanted))


@pytest.mark.parametrize(
    "text", ["~/data", "a=b", "a#b", "é", "日本 x", "s3://b/p?v=1", "(a)", "<", "int(x)"]
)
def test_a_plain_text_that_hydra_has_no_words_for_stays_as_it_is(text):
    assert read_override(f"key={text}").value == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a b": 1}', {"a b": 1}),
        ('["é", {"0": null}]', ["é", {"0": None}]),
        ('{"x": "a\\n"}', {"x": "a\n"}),
        ("{'a b': [1.0, off, 007]}", {"a b": [1.0, "off", "007"]}),
        ("[~/a, é, 1_0]", ["~/a", "é", 10]),
        ("[--lr=0.1, -v]", ["--lr=0.1", "-v"]),
        ("{'0': 1, 0: 2}", {"0": 1, 0: 2}),
        ("{'a#b': c#d}", {"a#b": "c#d"}),
    ],
)
def test_lists_and_mappings_that_hydra_has_no_words_for_are_read(text, value):
    assert repr(read_override(f"key={text}").value) == repr(value)


@pytest.mark.parametrize(
    "text",
    ["#x", "#", "a #b", "~", "[null, ~]", "'it''s'", "[1", "{a", "[1 #\n]", "{a:1, 'b c': 2}",
     "{'a b': 1, 'a b': 2}", "&a", "!x", "é\nb", "'a",
     "[choice(1,2)]", "[1, {<<: {'a b': 1}}]", "{'a b': ~}", "> x", "é: x"],
)  # fmt: skip
def test_what_neither_reads_is_refused_and_not_guessed(text):
    with pytest.raises(RecipeError) as caught:
        read_override(f"key={text}")
    assert caught.value.hint


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(PLAIN)
def test_a_value_that_is_written_as_an_override_is_read_back(value: Any) -> None:
    found = read_override(as_override("key", value)).value
    assert repr(found) == repr(value)


def test_keys_of_mappings_keep_their_types(tmp_path):
    recipe = load_recipe("digits", ["+model.dims={0: 1, a: 2, true: 3, 1.5: 4}"])
    assert recipe.model.as_config()["dims"] == {0: 1, "a": 2, True: 3, 1.5: 4}
    kept = tmp_path / "recipe.json"
    kept.write_text(recipe.model_dump_json(by_alias=True))
    json.loads(kept.read_text())
    for again in (type(recipe).model_validate_json(kept.read_bytes()), load_recipe(str(kept))):
        assert repr(again.model.as_config()["dims"]) == repr(recipe.model.as_config()["dims"])


@pytest.mark.parametrize(
    "change", ["model.dims.0=5", "+model.dims.0=5", "~model.dims.0", "model.dims.true.x=1"]
)
def test_a_text_never_takes_its_place_beside_a_key_that_is_none(change):
    with pytest.raises(RecipeError, match="which is not text there"):
        load_recipe("digits", ["+model.dims={0: 1, 2: 2, true: {x: 2}}", change])
    merged = load_recipe("digits", ["+model.dims={0: 1, 1: 2}", "model.dims={0: 5}"])
    assert merged.model.as_config()["dims"] == {0: 5, 1: 2}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ('model={"a": 1, "a": 2}', "twice|duplicate"),
        ('model={"a": {"b": 1, "b": 2}}', "twice|duplicate"),
        ("model={'a b': 1, 'a b': 2}", "twice|duplicate"),
        ("model={1: a, 1: b}", "the key 1 is there twice"),
        ("model={a: 1, a: 2}", "twice|duplicate"),
        ("model=[{b: {1: a, true: b}}]", "the key True is there twice"),
        ("model.name=\udcff", "half of a character"),
        ('model={"a": "\\ud800"}', "half of a character"),
    ],
)
def test_an_override_that_would_lose_a_value_or_break_a_record_is_refused(override, words):
    with pytest.raises(RecipeError, match=words):
        read_override(override)


def test_pairs_with_a_key_twice_are_refused():
    with pytest.raises(RecipeError, match="the key 1 is there twice"):
        load_recipe("digits", ["model.dims={_pairs_: [[1, a], [1, b]]}"])


def test_surrogates_of_json_are_joined():
    assert read_override('model={"a": "\\ud83d\\ude00"}').value == {"a": "😀"}
    assert read_override("model.name=😀").value == "😀"


@pytest.mark.parametrize(
    "key",
    [
        "model.[x]", "model..x", ".x", "x.", "model['x']", 'model."x"', "'seed'", "model.x{y}",
        "model.${x}", "model.$x", "model.l[", "model.l]", "model.[[l]]", "model.l[]",
        "model.l[1.5]",
        "model.l[1]x", "model.l.[1]", " seed", "seed ", "model. x", "model.x[ 0 ]", "[", "]", "a[b",
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["{}=1", "+{}=1", "++{}=1", "~{}"])
def test_a_malformed_key_is_refused_through_every_door(key, form):
    override = form.format(key)
    for door in (read_override, check_from_outside_alone, key_of_point, load_alone):
        with pytest.raises(RecipeError, match="is malformed") as caught:
            door(override)
        assert "with a dot between parts" in caught.value.hint


def check_from_outside_alone(override: str) -> None:
    check_from_outside([override])


def key_of_point(override: str) -> None:
    apply(
        OmegaConf.create({"model": {"l": [1]}}),
        Override("", override.strip("+~").partition("=")[0], 1),
    )


def load_alone(override: str) -> None:
    load_recipe("digits", [override])


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("model[0].x", "but there is no list"),
        ("model.new[0]", "but there is no list"),
        ("trainer.callbacks[0]", "but there is no list"),
        ("seed[0]", "but there is no list"),
        ("model.l[-1]", "the entry -1 of a list of 2 entries"),
        ("model.l[2]", "the entry 2 of a list of 2 entries"),
        ("model.l[00]", "the entry 00 of a list"),
        ("model.l.x", "the entry x of a list"),
    ],
)
def test_an_entry_that_does_not_exist_is_refused(key, words):
    for override in (f"{key}=1", f"+{key}=1"):
        with pytest.raises(RecipeError, match=words):
            load_recipe("digits", ["+model.l=[1,{x: 2}]", override])


@pytest.mark.parametrize(
    "key", ["model.opt.a", "model[opt].a", "model[opt][a]", "[model][opt][a]", "[model].opt.a"]
)
def test_brackets_and_dots_are_one_key(key):
    base = "+model.opt={a: 1, b: 2}"
    assert load_recipe("digits", [base, f"{key}=5"]).model.as_config()["opt"] == {"a": 5, "b": 2}
    assert load_recipe("digits", [base, f"~{key}"]).model.as_config()["opt"] == {"b": 2}
    with pytest.raises(RecipeError, match="adds a key that exists"):
        load_recipe("digits", [base, f"+{key}=5"])


@pytest.mark.parametrize("null", ["null", "Null", "NULL"])
def test_null_is_a_value_and_removes_no_key(null):
    base = "+model.opt={a: {b: 1}, c: 2}"

    def opt(*overrides):
        return load_recipe("digits", [base, *overrides]).model.as_config()["opt"]

    assert opt(f"model.opt={null}") is None
    assert opt(f"model.opt.a={null}") == {"a": None, "c": 2}
    assert opt(f"model.opt={{a: {null}}}") == {"a": None, "c": 2}
    assert opt("~model.opt.a") == {"c": 2}
    for key in ("seed", "trainer.extra", "trainer.ddp", "trainer.callbacks", "data.augment"):
        for more in ([], ["trainer.limit_val_batches=1"]):
            with pytest.raises(RecipeError, match="got null"):
                load_recipe("digits", [f"{key}={null}", *more])


def test_each_key_that_differs_is_told_with_both_values() -> None:
    before = load_recipe("digits")
    changed = ("trainer.max_epochs=3", "model.learning_rate=0.5", "+model.dropout=0.1")
    after = load_recipe("digits", [each.lstrip("+") for each in changed])
    assert differences(before, after) == (
        Change(key="model.learning_rate", before="0.003", after="0.5"),
        Change(key="trainer.max_epochs", before=str(before.trainer.max_epochs), after="3"),
        Change(key="model.dropout", before="", after="0.1"),
    )
    assert differences(before, before) == ()
