"""Texts of errors: without links to pydantic's own pages, and such that a record can hold them."""

from __future__ import annotations

import os

import pytest
from pydantic import BaseModel, ValidationError

from headrace.errors import HeadraceError, StepError, blaming_user_code, words_of
from headrace.files.atomic import read_record, write_record
from headrace.recipe.recipe import Recipe
from headrace.steps.mailbox import Failure
from headrace.steps.run import failure_of
from headrace.training.rank_failures import describe

LINK = "errors.pydantic.dev"


class Model(BaseModel):
    a: int
    b: float


def problem() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"a": "x", "b": "y"})
    return caught.value


def test_each_problem_stays_and_no_link():
    error = problem()
    assert str(error).count(LINK) == 2
    assert LINK not in words_of(error)
    assert "unable to parse string as an integer" in words_of(error)
    assert "unable to parse string as a number" in words_of(error)


def test_failures_of_steps_and_ranks(tmp_path):
    for failure in (failure_of(problem()), describe(problem(), 0)):
        assert LINK not in failure.model_dump_json()
    with pytest.raises(Exception, match="Model") as caught, blaming_user_code("Model", "hint"):
        raise problem()
    assert LINK not in failure_of(caught.value).model_dump_json()


def test_records_that_are_damaged(tmp_path):
    (tmp_path / "recipe.json").write_text('{"name": 3}')
    with pytest.raises(StepError) as caught:
        read_record(tmp_path / "recipe.json", Recipe)
    assert LINK not in str(caught.value)


@pytest.mark.parametrize("kind", [ValueError, StepError, FileNotFoundError])
def test_a_name_that_is_not_utf8_can_be_recorded(tmp_path, kind):
    name = os.fsdecode(b"sample-\xff.png")
    try:
        with blaming_user_code("The dataset failed", "Look at it."):
            raise kind(f"'{name}' is damaged")
    except HeadraceError as error:
        failure = failure_of(error)
    write_record(tmp_path / "failure.json", failure)
    found = read_record(tmp_path / "failure.json", Failure)
    assert found == failure
    assert "'sample-\\udcff.png' is damaged" in found.message
