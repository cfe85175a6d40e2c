"""What the check of a site tells: a queue that does not answer, the nodes of a trial, clocks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from headrace import __version__
from headrace.batch.commands import CommandResult, LocalCommands
from headrace.batch.findings import Finding
from headrace.batch.job_records import JobSpec
from headrace.batch.slurm import Slurm
from headrace.clusters.preflight import Check, NodeReport
from headrace.errors import BatchError, HeadraceError, LoginError
from headrace.recipe.batch import Login
from headrace.recipe.load import load_site
from headrace.recipe.site import Role
from headrace.site_check import check, site_paths
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


HERE = LocalCommands({})


class Elsewhere:
    """Runs commands on this machine, but sees another folder of the same name."""

    def run(self, command: Sequence[str], text: str = "") -> CommandResult:
        hidden = command[2:3] == ("cat",) or "cat " in " ".join(command)
        return CommandResult(0, "other words", "") if hidden else HERE.run(command, text)


def told(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(each.grade.value, each.subject) for each in findings]


def test_a_login_node_that_sees_the_folder(tmp_path: Path):
    found = list(site_paths.login_node(HERE, Login(host="front"), tmp_path / "new"))
    assert told(found) == [("ok", "login")]
    assert list((tmp_path / "new").iterdir()) == []


def test_a_login_node_with_another_folder_of_that_name(tmp_path: Path):
    found = list(site_paths.login_node(Elsewhere(), Login(host="front"), tmp_path))
    assert told(found) == [("ok", "login"), ("warn", "folder")]
    assert "front does not see" in found[1].seen


@pytest.mark.parametrize(
    ("python", "grade", "seen"),
    [
        (sys.executable, "ok", "on a"),
        ("/no/python", "fail", "/no/python on a: "),
    ],
)
def test_a_host_without_a_queue(
    python: str, grade: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(site_paths, "commands_of_hosts", lambda _: {"a": HERE, "b": HERE})
    role = Role.model_validate({"backend": "ssh", "kind": "gang", "batch": {"hosts": ["a", "b"]}})
    found = list(site_paths.hosts(role, tmp_path, job(tmp_path, python)))
    assert [each.subject for each in found] == ["a", "folder", "python"]
    assert found[2].grade.value == grade
    assert seen in found[2].seen


def test_another_version_of_headrace_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "old" / "headrace"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '0.0.1'")
    monkeypatch.setattr(site_paths, "commands_of_hosts", lambda _: {"a": HERE})
    role = Role.model_validate({"backend": "ssh", "kind": "gang", "batch": {"hosts": ["a"]}})
    spec = job(tmp_path, sys.executable, str(package.parent))
    *_, python = site_paths.hosts(role, tmp_path, spec)
    assert python.grade.value == "fail"
    assert f"has headrace 0.0.1, this is {__version__}" in python.seen


@pytest.mark.parametrize(
    ("ssh", "grade", "seen"),
    [("exit 0", "ok", "runs commands by ssh"), ("echo no route >&2; exit 255", "fail", "no route")],
)
def test_the_first_host_must_reach_the_others(
    ssh: str, grade: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "ssh").write_text(f"#!/bin/sh\n{ssh}\n")
    (tmp_path / "ssh").chmod(0o700)
    first = LocalCommands({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    monkeypatch.setattr(site_paths, "commands_of_hosts", lambda _: {"a": first, "b": HERE})
    role = Role.model_validate({"backend": "ssh", "kind": "gang", "batch": {"hosts": ["a", "b"]}})
    spec = job(tmp_path, sys.executable).model_copy(update={"nodes": 2})
    *_, between = site_paths.hosts(role, tmp_path, spec)
    assert (between.subject, between.grade.value, between.seen) == ("a to b", grade, seen)


def job(folder: Path, python: str, path: str = "") -> JobSpec:
    return JobSpec(
        name="look",
        command=(python, "-c", "pass"),
        environment={"PYTHONPATH": path or ":".join(sys.path)},
        nodes=1,
        cpus_per_node=1,
        time_limit_s=60.0,
        folder=str(folder),
        log="/dev/null",
    )
