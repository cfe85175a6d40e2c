"""What users read of a problem that pydantic found has no link to pydantic's own pages."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from headrace.errors import StepError, blaming_user_code, words_of
from headrace.files.atomic import read_record
from headrace.recipe.recipe import Recipe
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
