"""A probe is a run of a kind that the package adds to headrace."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.recipe.load import load_site
from headrace.runs.runs import RunRequest
from headrace.states import StepState
from headrace.steps.step_kinds import StepOptions
from headrace_foresight.prediction import predict
from headrace_probes.probe_records import ProbeOptions
from support.runs import attempt_row_of, lease_on_disk, make_run

ASKED = {"recipe": "digits", "site": "laptop", "key": "k", "owner": "cli:h:1:1", "kind": "probe"}


def options(**given: object) -> StepOptions:
    return ProbeOptions.model_validate(given).model_dump(mode="json")


def test_a_request_has_the_options_of_its_kind():
    given = options(only=["gemm"], quick=True)
    request = RunRequest.model_validate({**ASKED, "options": given})
    assert request.words == ("probe", "--site", "laptop", "--only", "gemm", "--quick")
    assert RunRequest.model_validate({**ASKED, "kind": "train"}).options is None
    assert RunRequest.model_validate(ASKED).options == options()


def test_probes_tell_of_those_that_measure_the_same(headrace_home: Path):
    quick, full = options(only=["memory"], quick=True), options()
    for given, took_s in ((quick, 5.0), (full, 500.0)):
        run = make_run(kind="probe", options=given)
        attempt_row_of(run, "probe", lease_on_disk(run, "gpu"), kind="probe", number=None,
                       state=StepState.SUCCEEDED, started_at=1000.0,
                       finished_at=1000.0 + took_s)  # fmt: skip
    site = load_site("laptop")
    for given, took_s in ((quick, 5.0), (full, 500.0)):
        (part,) = predict(run.recipe, site, "probe", given).parts
        assert (part.name, part.seconds, part.num_known) == ("probe", pytest.approx(took_s), 1)
    other = options(only=["gemm"])
    assert predict(run.recipe, site, "probe", other).unknown == ("probe",)
