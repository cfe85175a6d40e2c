"""A site whose queue does not answer: told once, for all roles that use it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.batch.findings import Finding
from headrace.batch.slurm import Slurm
from headrace.errors import BatchError, HeadraceError, LoginError
from headrace.recipe.load import load_site
from headrace.runs.site_check import check as looks


@pytest.mark.parametrize(("error", "subject"), [(BatchError, "queue"), (LoginError, "login")])
def test_a_queue_that_does_not_answer(
    error: type[HeadraceError],
    subject: str,
    headrace_home: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def findings(*_: object) -> Iterator[Finding]:
        raise error("no answer", "Is it up?")

    monkeypatch.setattr(Slurm, "check", findings)
    _, role = looks.check(load_site("slurm-dev"), ["gpu"])
    assert role.has_failed
    (found,) = (each for each in role.findings if each.subject == subject)
    assert (found.grade, found.seen, found.advice) == ("fail", "no answer", "Is it up?")
