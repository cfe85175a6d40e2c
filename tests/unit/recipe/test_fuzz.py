"""Whatever stands in recipes and overrides, the answer is a recipe or an error with a name."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.recipe.fence import absolute, opened
from headrace.recipe.fit import check_packing, check_training
from headrace.recipe.load import BUILT_IN, load_recipe, load_site
from headrace.recipe.schema import json_schema
from support.hostile_overrides import TREES

pytestmark = pytest.mark.slow

_PATH = str(Path(__file__).parents[2])

DIGITS = (BUILT_IN / "recipes" / "digits.yaml").read_text()


SECTIONS = list(json_schema("recipe")["properties"])
WORDS = r"""
[ ] { } *a ! | > ' " \x24{ ${ ${oc.env:HOME} ${.} ${..a} # % @ = << ~ null true 1e9 -1 .nan .inf
0x1f 1:30 2001-13-45 _target_ torch.nn.Linear os.system _args_ _partial_ / .. s3://
"""
SPACED = [": ", ", ", "- ", "? ", "&a ", "!!pairs ", "\n", "\t", "\x00", "\ud800", "é"]
MARKS = st.sampled_from([*WORDS.split(), *SPACED])
VALUES = st.lists(st.one_of(MARKS, st.text(max_size=4)), max_size=8).map("".join)
FUZZED = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


def _use(name: str) -> None:
    """Go as far as `headrace plan` does; only errors with a name may end it."""
    with contextlib.suppress(HeadraceError):
        recipe = absolute(load_recipe(name))
        assert type(recipe).model_validate_json(recipe.model_dump_json(by_alias=True)) is not None
        site = opened(load_site("laptop"), is_from_terminal=False)
        check_packing(recipe, site)
        check_training(recipe, site)


def test_overrides_through_every_door(tmp_path: Path) -> None:
    """In a process of its own, which a limit may end; see `NUM_EXAMPLES`."""
    own = {
        "HEADRACE_HOME": str(tmp_path),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "PYTHONPATH": _PATH,
    }
    doing = tmp_path / "doing"
    ended = subprocess.run(
        [sys.executable, "-m", "support.hostile_overrides", str(doing)],
        env={**os.environ, **own}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = doing.read_text() if doing.exists() else "nothing was asked"
    assert ended.returncode == 0, f"{ended.stderr[-5000:]}\nended by {ended.returncode} in: {told}"


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
