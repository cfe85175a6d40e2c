"""Everything that only informs of a run is broken on purpose while it trains: it ends well."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import informing
from headrace.cli import watching
from headrace.execution import ticks
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder
from headrace.files.lines import read_lines
from headrace.informing import LeftOut
from headrace.leases import end_leases
from headrace.ledger.rows import RunRecord
from headrace.runs import lifecycle, machine_records, provenance
from headrace.states import StepState
from headrace_foresight.accounts import Foresight
from support.bad_input import make_place
from support.command_line import Ended
from support.factories import prediction
from support.training_code.breaking import broken

FAULTS = ("raises", "hangs", "nonsense")
_STEPS = ("pack", "stage", "train")

IN_THIS_PROCESS = {
    "forecast": [(Foresight, "predict")],
    "time left": [(Foresight, "ahead")],
    "accounting": [
        (ticks, "refresh_usage"), (lifecycle, "note_usage"), (end_leases, "note_usage"),
    ],
    "count of": [(machine_records, "meter_of_lease")],
    "state of the code": [(provenance, "code_state")],
    "changed keys": [(provenance, "_changes")],
    "progress on the terminal": [(watching, "remarks")],
}  # fmt: skip
"""What is broken, by the part that is counted."""

IN_A_RANK = ("Usage", "RankUsage", "rows of the history", "log_metrics of Logs", "history")

UNCHECKED = [
    ("nonsense", part)
    for part in (
        "accounting", "progress on the terminal", "rows of the history", "log_metrics of Logs",
    )
]  # fmt: skip
"""Parts that give no answer, so that nonsense is none."""


@dataclass(frozen=True)
class Broken:
    """How a run ended whose every informing part had a fault."""

    fault: str
    run: RunRecord
    command: Ended
    status: Ended
    as_json: dict[str, Any]
    failures: list[LeftOut]


@pytest.fixture(scope="module", params=FAULTS)
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Broken:
    fault: str = request.param
    place = make_place(tmp_path_factory.mktemp(fault) / "home")
    place.write_recipe(
        "broken",
        model={"_target_": "broken_parts.BrokenModel", "fault": fault, "notes": str(place.home)},
        train={"ranks_per_node": 1},
        trainer={
            "accelerator": "cpu",
            "max_epochs": 2,
            "loggers": [{"_target_": "broken_parts.Logs", "fault": fault}],
            "extra": {"log_every_n_steps": 1},
        },
    )
    with pytest.MonkeyPatch.context() as patch:
        _break(patch, fault)
        command = place.shown("run", "broken", "--site", "here")
    place.wait_for_quiet()
    run, _ = place.newest()
    status = place.shown("status", run.run_id)
    as_json = json.loads(place.shown("status", run.run_id, "--json").stdout)
    failures = read_lines(RunFolder(Path(run.folder)).informing, LeftOut)
    return Broken(fault, run, command, status, as_json, failures)


def _break(patch: pytest.MonkeyPatch, fault: str) -> None:
    patch.setattr(informing, "_failed", {})
    patience_s = 0.1 if fault == "hangs" else 60.0
    patch.setattr(informing.inform, "__defaults__", (None, patience_s))
    patch.setattr(ticks, "ENFORCED_EVERY_S", 0.5)
    patch.setattr(provenance, "DECISION_S", patience_s)
    for module in (lifecycle, end_leases, machine_records):
        patch.setattr(module, "AFTERWARDS_S", patience_s)
    for targets in IN_THIS_PROCESS.values():
        for target, name in targets:
            patch.setattr(target, name, broken(fault))
    patch.setattr(Foresight, "predict", _after_a_forecast(broken(fault)))


def _after_a_forecast(part: Callable[..., Any]) -> Callable[..., Any]:
    """The broken part; it writes a forecast first, so that a time left can be asked for."""
    known = prediction(dict.fromkeys(_STEPS, 9.0), half_s=1.0)

    def predict(*arguments: Any) -> Any:
        for folder in (Path(os.environ["HEADRACE_HOME"]) / "runs").iterdir():
            write_record(RunFolder(folder).prediction, known)
        return part(*arguments)

    return predict


def test_the_run_succeeds(ended: Broken):
    assert ended.command.exit_code == 0, ended.command.output
    assert ended.run.state is StepState.SUCCEEDED


@pytest.mark.parametrize("part", [*IN_THIS_PROCESS, *IN_A_RANK])
def test_a_broken_part_is_counted(ended: Broken, part: str):
    reasons = [each.why for each in ended.failures if each.part.startswith(part)]
    if (ended.fault, part) in (*UNCHECKED, ("hangs", "time left")):  # which nothing shows then
        assert not reasons
        return
    assert reasons
    if part != "history":
        words = {"raises": "broken on purpose", "hangs": "no answer within 0.1 s"}
        assert words.get(ended.fault, "") in reasons[0]


def test_the_count_and_the_last_reason_are_shown(ended: Broken):
    count, last = len(ended.failures), ended.failures[-1]
    assert f"{count} failures of parts that only inform" in ended.status.stdout
    assert ended.as_json["informing"] == {"count": count, "last": f"{last.part}: {last.why}"}
