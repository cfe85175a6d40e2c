"""What steps gave, in words."""

from __future__ import annotations

import pytest

from headrace.cli.words import result_line
from headrace.states import StepState
from headrace.status.step import StepView


@pytest.mark.parametrize(
    ("steps", "told"),
    [(None, "restarted once: a node vanished"), (0, "restarted once: a node vanished"),
     (1800, "1.8e+03 steps, restarted once: a node vanished")],
)  # fmt: skip
def test_nothing_is_said_of_steps_where_a_script_told_none(steps: int | None, told: str):
    outputs = {"steps": steps, "restart_causes": ["a node vanished"], "metrics": {}}
    view = StepView(name="train", state=StepState.SUCCEEDED, outputs=outputs)
    assert result_line(view) == told.replace("1.8e+03", "1800")
