"""What the check of a site tells: a queue that does not answer, the nodes of a trial, clocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.batch.findings import Finding
from headrace.batch.slurm import Slurm
from headrace.clusters.preflight import Check, NodeReport
from headrace.errors import BatchError, HeadraceError, LoginError
from headrace.recipe.load import load_site
from headrace.site_check import check
from support.access import write_site


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
    _, role = check.check(load_site("slurm-dev"), ["gpu"])
    assert role.has_failed
    (found,) = (each for each in role.findings if each.subject == subject)
    assert (found.grade, found.seen, found.advice) == ("fail", "no answer", "Is it up?")


def test_each_node_is_told_with_what_was_looked_at_or_is_wrong() -> None:
    good = Check(name="locks", problem="", seconds=0.25)
    bad = Check(name="GPUs", problem="1 of 2", seconds=1.0)
    reports = tuple(
        NodeReport(node=f"n{index}", index=index, checks=checks)
        for index, checks in enumerate([(good,), (good, bad)])
    )
    assert [(each.grade, each.subject, each.seen) for each in check._nodes(reports)] == [
        ("ok", "n0", "locks 0.2 s"),
        ("fail", "n1", "GPUs: 1 of 2"),
    ]


@pytest.mark.parametrize(("skew_s", "grade"), [(0.0, "ok"), (-60.0, "warn"), (60.0, "warn")])
def test_clocks_that_differ_are_warned_of(skew_s: float, grade: str) -> None:
    assert check._clock(skew_s).grade == grade


def test_users_and_secrets_of_a_site_are_looked_at(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = {"KEY": "env:MY_KEY", "TOKEN": "airflow:tracker.password"}
    write_site(headrace_home, ["ada", "@vision"], secrets=sources)

    def found() -> list[tuple[str, str, str]]:
        (of_site,) = check.check(load_site("club"))
        return [
            (each.grade.value, each.subject, each.seen)
            for each in of_site.findings
            if each.subject in ("users", "secrets")
        ]

    team, of_airflow, key = found()
    assert team[:2] == ("fail", "users")
    assert "'vision'" in team[2]
    assert of_airflow == ("ok", "secrets", "not checked, since only Airflow has them: TOKEN")
    assert key[:2] == ("warn", "secrets")
    assert "MY_KEY" in key[2]
    (headrace_home / "teams.yaml").write_text("vision: [grace]")
    monkeypatch.setenv("MY_KEY", "of the test")
    assert [each[:2] for each in found()] == [("ok", "users"), ("ok", "secrets"), ("ok", "secrets")]
    assert "of the test" not in str(found())
