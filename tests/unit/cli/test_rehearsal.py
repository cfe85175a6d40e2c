"""`headrace run --rehearse`: the run begins only if its rehearsal has succeeded."""

from __future__ import annotations

import pytest
import typer

from headrace.cli import runs
from headrace.ledger.ledger import open_ledger
from headrace.runs.runs import Run
from headrace.states import StepState
from support.command_line import headrace, refusal

pytestmark = pytest.mark.usefixtures("headrace_home")


@pytest.mark.parametrize("passes", [True, False])
def test_a_run_begins_only_if_its_rehearsal_succeeds(
    monkeypatch: pytest.MonkeyPatch, passes: bool
) -> None:
    done: list[Run] = []

    def carry_out(job: Run, *_: object, **__: bool) -> None:
        done.append(job)
        if not passes:
            raise typer.Exit(1)

    monkeypatch.setattr(runs, "carry_out", carry_out)
    ended = headrace("run", "digits", "--rehearse")
    assert ended.exit_code == 1 - passes
    assert [job.request.rehearses for job in done] == ([True, False] if passes else [True])
    newest, _ = open_ledger().runs(2)
    assert newest.recipe_name == "digits"
    assert newest.state is (StepState.RUNNING if passes else StepState.CANCELLED)


def test_packing_alone_has_no_rehearsal() -> None:
    assert "has no rehearsal" in refusal("run", "digits", "--pack-only", "--rehearse").what
