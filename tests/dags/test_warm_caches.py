"""What is read before processes are forked is not read again by them."""

from __future__ import annotations

from pathlib import Path

from headrace.ledger import ledger as ledgers
from headrace.ledger.ledger import open_ledger
from headrace.recipe import load
from headrace.runs.runs import open_run
from headrace_airflow.warm_caches import warm_caches
from support.runs import make_run


def test_what_was_read_is_kept(headrace_home, monkeypatch):
    run = make_run()
    ledgers._opened.cache_clear()
    warm_caches()
    monkeypatch.setattr(load, "load_site", None)
    monkeypatch.setattr(ledgers.Ledger, "open", None)
    assert open_ledger().run(run.run_id).run_id == run.run_id
    assert open_run(run.run_id).site_now.name == run.site.name


def test_a_ledger_that_cannot_be_opened_is_told_and_no_obstacle(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HEADRACE_LEDGER", "mysql://nowhere/ledger")
    warm_caches()
    assert "names the database 'mysql'" in caplog.text


def test_a_run_that_cannot_be_read_is_told_and_no_obstacle(headrace_home, monkeypatch, caplog):
    make_run()
    monkeypatch.setattr(
        "headrace_airflow.warm_caches.run_details", lambda _: Path("/proc/self/mem").read_bytes()
    )
    warm_caches()
    assert "Input/output error" in caplog.text
