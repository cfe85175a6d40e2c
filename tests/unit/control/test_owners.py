"""Who answers for a run."""

from __future__ import annotations

from headrace.control.owners import owner_is_gone, owner_process, process_owner
from headrace.processes import ProcessIdentity
from support.runs import ended_owner


def test_an_owner_text_names_the_process_that_wrote_it():
    owner = process_owner()
    assert owner_process(owner) == ProcessIdentity.of()
    assert not owner_is_gone(owner)


def test_an_ended_process_is_gone():
    assert owner_is_gone(ended_owner())


def test_nothing_is_known_of_processes_elsewhere_and_of_other_owners():
    assert not owner_is_gone("cli:another-host:1:2.5")
    assert owner_process("airflow:headrace_train:manual__2026-01-02T03:04:05+00:00") is None
    assert not owner_is_gone("airflow:headrace_train:manual")
