"""Whatever stands in recipes and overrides, the answer is a recipe or an error with a name."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.recipe.fit import absolute, check_packing, check_training, opened
from headrace.recipe.load import BUILT_IN, load_recipe, load_site
from headrace.recipe.overrides import check_from_outside
from headrace.recipe.schema import json_schema

DIGITS = (BUILT_IN / "recipes" / "digits.yaml").read_text()


SECTIONS = list(json_schema("recipe")["properties"])


def _keys() -> list[str]:
    """Dotted keys of recipes, two levels deep."""
    parts = json_schema("recipe")["$defs"]
    found = list(SECTIONS)
    for key, part in (("dataset", "DatasetSpec"), ("pack", "PackSpec"), ("stage", "StageSpec"),
                      ("data", "DataSpec"), ("trainer", "TrainerSpec"), ("train", "TrainSpec"),
                      ("evaluate", "EvaluateSpec")):  # fmt: skip
        found += [f"{key}.{name}" for name in parts[part]["properties"]]
    return found


KEYS = st.one_of(
    st.sampled_from(_keys()),
    st.builds("{}.{}".format, st.sampled_from(_keys()), st.text("ab_0.[]-1", max_size=6)),
    st.text(max_size=8),
)
WORDS = r"""
[ ] { } *a ! | > ' " \x24{ ${ ${oc.env:HOME} ${.} ${..a} # % @ = << ~ null true 1e9 -1 .nan .inf
0x1f 1:30 2001-13-45 _target_ torch.nn.Linear os.system _args_ _partial_ / .. s3://
"""
SPACED = [": ", ", ", "- ", "? ", "&a ", "!!pairs ", "\n", "\t", "\x00", "\ud800", "é"]
MARKS = st.sampled_from([*WORDS.split(), *SPACED])
VALUES = st.lists(st.one_of(MARKS, st.text(max_size=4)), max_size=8).map("".join)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["${seed}", "${oc.env:NOT_THERE}", "/etc", "../x", "s3://b/c", "os.system"]),
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(["_target_", "_args_", "_partial_", "a"]), LEAVES),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)
FUZZED = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


def _use(name: str, overrides: tuple[str, ...] = ()) -> None:
    """Go as far as `headrace plan` does; only errors with a name may end it."""
    with contextlib.suppress(HeadraceError):
        recipe = absolute(load_recipe(name, overrides))
        assert type(recipe).model_validate_json(recipe.model_dump_json(by_alias=True)) is not None
        site = opened(load_site("laptop"), is_from_terminal=False)
        check_packing(recipe, site)
        check_training(recipe, site)


@FUZZED
@given(st.lists(st.tuples(KEYS, VALUES).map("=".join), max_size=3))
def test_overrides(overrides: list[str]) -> None:
    with contextlib.suppress(HeadraceError):
        check_from_outside(overrides)
    _use("digits", tuple(overrides))


@FUZZED
@given(KEYS, TREES)
def test_overrides_of_whole_trees(key: str, tree: Any) -> None:
    text = yaml.safe_dump(tree, default_flow_style=True, allow_unicode=True).strip()
    _use("digits", (f"{key}={text.removesuffix('...').strip()}",))


@FUZZED
@given(st.integers(0, len(DIGITS)), st.integers(0, 12), VALUES)
def test_files_with_a_piece_replaced(recipe_file: Path, at: int, gone: int, new: str) -> None:
    changed = DIGITS[:at] + new + DIGITS[at + gone :]
    recipe_file.write_bytes(changed.encode(errors="surrogatepass"))
    _use(str(recipe_file))


@FUZZED
@given(st.one_of(st.binary(max_size=200), VALUES.map(lambda text: text.encode(errors="replace"))))
@example(b"\xef\xbb\xbfname: x")
def test_files_of_anything(recipe_file: Path, content: bytes) -> None:
    recipe_file.write_bytes(content)
    _use(str(recipe_file))


@FUZZED
@given(st.dictionaries(st.sampled_from(SECTIONS), TREES, max_size=6))
def test_files_of_wrong_types(recipe_file: Path, tree: dict[str, Any]) -> None:
    whole = {**yaml.safe_load(DIGITS), **tree}
    recipe_file.write_text(yaml.safe_dump(whole, allow_unicode=True))
    _use(str(recipe_file))
