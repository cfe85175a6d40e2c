"""What a ledger promises, whichever database keeps it: one suite, run on each."""

from __future__ import annotations

import math
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, make_url, text

from headrace.errors import CapacityError, LedgerError, OwnLeasesError, UnknownNameError
from headrace.ledger import lease_slots, migrations
from headrace.ledger.database import Database
from headrace.ledger.ledger import Ledger
from headrace.ledger.rows import REVISION
from headrace.ledger.run_filter import Marks, RunFilter
from headrace.ledger.trial_rows import JournalPart
from headrace.ledger.usage_rows import By
from headrace.recipe.site import SitePrices
from headrace.states import FailureClass, LeaseState, StepState
from support.found_runs import FILTERS, put_runs
from support.ledger_rows import (
    NUM_PROCESSES,
    act_row,
    attempt_row,
    day,
    in_processes,
    lease_row,
    machine_row,
    run_row,
    take_place,
    trial_row,
    usage_row,
    wait_for_place,
    write_rows,
)
from support.postgres import PostgresServer, postgres_server
from support.runs import new_ledger
from support.waiting import wait_until

_MONEY_IN_ROWS = """
ALTER TABLE headrace_usage DROP COLUMN machine_id;
ALTER TABLE headrace_usage DROP COLUMN until;
ALTER TABLE headrace_usage DROP COLUMN cpu_energy_wh;
ALTER TABLE headrace_usage ADD COLUMN suite TEXT DEFAULT 'run-1' NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN owner TEXT DEFAULT 'ann' NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN site_name TEXT DEFAULT 'laptop' NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN recipe_name TEXT DEFAULT 'digits' NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN role TEXT DEFAULT 'gpu' NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN state TEXT DEFAULT 'succeeded' NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN node_kind TEXT DEFAULT '' NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN finished_at DOUBLE PRECISION DEFAULT 77;
ALTER TABLE headrace_usage ADD COLUMN day TEXT DEFAULT '2026-11-23' NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN gpu_s DOUBLE PRECISION DEFAULT 0 NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN idle_s DOUBLE PRECISION;
ALTER TABLE headrace_usage ADD COLUMN failed_s DOUBLE PRECISION;
ALTER TABLE headrace_usage ADD COLUMN usd_per_hour DOUBLE PRECISION;
ALTER TABLE headrace_usage ADD COLUMN price_source TEXT DEFAULT '' NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN price_as_of TEXT DEFAULT '' NOT NULL;
ALTER TABLE headrace_usage ADD COLUMN usd DOUBLE PRECISION;
ALTER TABLE headrace_usage ADD COLUMN usd_staging DOUBLE PRECISION;
ALTER TABLE headrace_usage ADD COLUMN usd_idle DOUBLE PRECISION;
ALTER TABLE headrace_usage ADD COLUMN usd_failed DOUBLE PRECISION;
INSERT INTO headrace_usage (run_id, step, trial, attempt, kind, lease_id, cause, created_at, node_s,
    node, nodes, gpus, cpus)
    VALUES ('run-1', 'lease-1', 0, 1, 'idle', 'lease-1', 'idle', 1, 900, '', 1, 0, 0);
ALTER TABLE headrace_trials ADD COLUMN usd DOUBLE PRECISION;
CREATE TABLE headrace_usage_sums (day TEXT PRIMARY KEY)
"""
"""Makes of today's schema that of revision 0008."""


class LedgerContract:
    """Tests that every database passes; subclasses give the fixtures `empty` and `url`.

    The first is a database without anything, the second one that somebody has opened before.
    """

    @pytest.fixture
    def ledger(self, url: str) -> Ledger:
        return Ledger.open(url)

    @pytest.fixture
    def with_lease(self, ledger: Ledger) -> Ledger:
        """A ledger that holds run-1 and its lease-1."""
        ledger.add_run(run_row())
        ledger.add_lease(lease_row(), max_active=4)
        return ledger

    # --- looks

    def test_a_look_takes_one_connection_and_sees_what_it_enters_itself(self, ledger: Ledger):
        opened: list[object] = []
        event.listen(ledger._database._readers, "connect", lambda *given: opened.append(given))
        with ledger.snapshot():
            assert ledger.runs() == ledger.leases() == ()
            with ledger.snapshot():
                assert ledger.trials_counted(["run-1"]) == {}
        assert len(opened) == 1
        with ledger.snapshot():
            assert ledger.runs() == ()
            ledger.add_run(run_row())
            found = ledger.run("run-1")
        assert (found.run_id, found.recipe_name) == ("run-1", "digits")
        opened.clear()
        assert len(ledger.runs()) == len(ledger.runs()) == 1
        assert len(opened) == 2

    # --- acts

    def test_acts_are_found_by_user_run_and_time_the_newest_first(self, ledger: Ledger):
        for number, (user, run_id) in enumerate(
            [("ada", "run-1"), ("ada", "run-2"), ("o'b\x00b", "run-1"), ("ada", "")]
        ):
            ledger.add_act(act_row(created_at=number / 2, user=user, run_id=run_id))
        found = {
            key: [row.created_at for row in ledger.acts(**asked)]
            for key, asked in {
                "all": {}, "ada": {"user": "ada"}, "run": {"run_id": "run-1"}, "few": {"limit": 2},
                "both": {"user": "ada", "run_id": "run-1"}, "late": {"since": 1.0},
            }.items()
        }  # fmt: skip
        assert found == {
            "all": [1.5, 1.0, 0.5, 0.0], "ada": [1.5, 0.5, 0.0], "run": [1.0, 0.0],
            "few": [1.5, 1.0], "both": [0.0], "late": [1.5, 1.0],
        }  # fmt: skip
        assert ledger.acts(run_id="run-1")[0].user == "o'b\\x00b"

    # --- opening

    def test_opening_again_keeps_everything(self, empty: str):
        Ledger.open(empty).add_run(run_row())
        again = Ledger.open(empty)
        assert again.run("run-1") == run_row()
        assert again.summary().revision == REVISION

    @pytest.mark.parametrize(
        "lacks",
        [
            pytest.param({}, id="before there were trials, machines and acts"),
            pytest.param(
                {"headrace_leases": ("owner", "lost_nodes"), "headrace_usage": ("stored_bytes",)},
                id="before columns were added",
            ),
        ],
    )
    def test_the_ledger_of_an_earlier_headrace_opens_with_all_its_rows(
        self, url: str, with_lease: Ledger, lacks: dict[str, tuple[str, ...]]
    ):
        with_lease.add_attempt(attempt_row())
        with_lease.put_usage([usage_row()])
        with Database(url).write() as session:
            for name in () if lacks else ("acts", "trials", "machines", "usage"):
                session.execute(text(f"DROP TABLE headrace_{name}"))
            for name, columns in lacks.items():
                for column in columns:
                    session.execute(text(f"ALTER TABLE {name} DROP COLUMN {column}"))
        set_revision(url, "0003")
        ledger = Ledger.open(url)
        assert (ledger.runs(), ledger.leases()) == ((run_row(kind="train"),), (lease_row(),))
        assert ledger.attempts("run-1") == (attempt_row(),)
        assert ledger.usage("run-1") == ((usage_row(),) if lacks else ())
        ledger.put_machines([machine_row()])
        ledger.put_usage([usage_row(2)])
        assert get_revision(url) == REVISION

    @pytest.mark.parametrize("revision", ["0005", "0007", "0008"])
    def test_a_ledger_with_money_in_its_rows_opens_and_prices_them_by_their_machines(
        self, url: str, with_lease: Ledger, revision: str
    ):
        with_lease.put_machines([machine_row("node-0", billed_s=3600.0, usd_per_hour=2.0)])
        with_lease.put_trials([trial_row(1)], [usage_row(1, node_s=1800.0, node="node-0")])
        with Database(url).write() as session:
            for statement in _MONEY_IN_ROWS.split(";"):
                session.execute(text(statement))
            for column in ("unpriced_bytes", "usd_storage", "usd_transfer"):
                if revision != "0008":
                    for table in ("headrace_usage", "headrace_usage_sums"):
                        session.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} BIGINT"))
        set_revision(url, revision)
        ledger = Ledger.open(url)
        assert get_revision(url) == REVISION
        (row,) = ledger.usage("run-1")
        assert (row.until, row.machine_id, row.cause) == (77.0, "node-0", "succeeded")
        assert ledger.trial("run-1", 1).usd == 1.0
        owners = {each.name: (each.usd, each.idle_s) for each in ledger.usage_sums("user")}
        assert owners == {"ann": (2.0, 1800.0)}
        ledger.put_trials([trial_row(2)], [usage_row(2)])

    def test_a_backup_opens_elsewhere(self, url: str, with_lease: Ledger):
        """As docs/how-to/deploy-control-side.md tells: nobody stops for it."""
        restored = Ledger.open(self.backed_up(url))
        assert (restored.runs(), restored.leases()) == (with_lease.runs(), with_lease.leases())
        restored.add_attempt(attempt_row())
        assert with_lease.attempts("run-1") == ()

    def test_a_newer_schema_is_refused_and_left_alone(self, url: str, ledger: Ledger):
        set_revision(url, "9999")
        with pytest.raises(LedgerError, match="revision 9999, which is newer") as caught:
            Ledger.open(url)
        assert "Upgrade headrace" in str(caught.value)
        assert get_revision(url) == "9999"

    def test_messages_and_summary_hide_the_password(self, url: str, ledger: Ledger):
        assert "secret" not in ledger.summary().url
        with pytest.raises(LedgerError) as caught:
            ledger.add_lease(lease_row(), max_active=1)
        assert "secret" not in str(caught.value)

    @pytest.mark.slow
    def test_twenty_processes_open_and_write_at_once(self, empty: str):
        """pains 12: no "database is locked", no orphan rows."""
        firsts = in_processes(write_rows, empty)
        ledger = Ledger.open(empty)
        assert sorted(firsts) == [False] * (NUM_PROCESSES - 1) + [True]
        assert ledger.summary().num_runs == NUM_PROCESSES + 1
        assert ledger.summary().num_attempts == 10 * NUM_PROCESSES
        assert ledger.summary().num_active_leases == 0
        for number in range(NUM_PROCESSES):
            run = ledger.run(f"run-{number}")
            assert (run.state, run.outputs) == (StepState.SUCCEEDED, {"accuracy": number / 100})
            assert [row.number for row in ledger.attempts(run.run_id)] == list(range(1, 11))

    # --- history

    def test_past_attempts_are_those_that_ended_on_a_role_the_newest_first(self, ledger: Ledger):
        ended = {"state": StepState.SUCCEEDED}
        for number, (recipe, site, role) in enumerate(
            [("digits", "a", "gpu"), ("digits", "a", "gpu"), ("digits", "a", "cpu"),
             ("digits", "b", "gpu"), ("letters", "a", "gpu")]
        ):  # fmt: skip
            run_id, lease_id = f"run-{number}", f"lease-{number}"
            ledger.add_run(run_row(run_id, recipe_name=recipe))
            row = lease_row(lease_id, run_id=run_id, site_name=site, role=role)
            ledger.add_lease(row, max_active=9)
            of_run = {"run_id": run_id, "lease_id": lease_id, "created_at": float(number)}
            ledger.add_attempt(attempt_row("stage", **of_run, **ended))
            ledger.add_attempt(attempt_row("train", **of_run))
        found = ledger.past_attempts("digits", "a", "gpu", limit=9)
        assert [(each.run_id, each.step) for each in found] == [
            ("run-1", "stage"),
            ("run-0", "stage"),
        ]
        assert ledger.past_attempts("digits", "a", "gpu", limit=1) == found[:1]
        assert ledger.past_attempts("digits", "c", "gpu", limit=9) == ()

    # --- runs

    def test_a_run_comes_back_as_it_was(self, ledger: Ledger):
        odd = {"none": None, "text": "zero \x00, half \udcff, é 水", "list": [1, 2.5, True]}
        run = run_row(overrides=("a=1", "b=2"), outputs=odd, created_at=1763683200.123456)
        ledger.add_run(run)
        assert ledger.run("run-1") == run

    def test_nan_and_infinity_survive(self, ledger: Ledger):
        ledger.add_run(run_row(outputs={"loss": math.nan, "best": math.inf}))
        outputs = ledger.run("run-1").outputs
        assert math.isnan(outputs["loss"])
        assert outputs["best"] == math.inf

    def test_text_that_databases_refuse_is_escaped(self, with_lease: Ledger):
        with_lease.add_attempt(attempt_row(message="zero \x00 half \udcff"))
        assert with_lease.attempts("run-1")[0].message == "zero \\x00 half \\udcff"

    def test_a_run_is_entered_once_by_key(self, ledger: Ledger):
        assert ledger.add_run(run_row("run-1", key="k")) is True
        assert ledger.add_run(run_row("run-1", key="k")) is False
        assert ledger.add_run(run_row("run-2", key="k")) is False
        assert [run.run_id for run in ledger.runs()] == ["run-1"]
        found = ledger.run_by_key("k")
        assert found.run_id == "run-1"

    def test_two_keys_cannot_share_a_run_id(self, ledger: Ledger):
        ledger.add_run(run_row("run-1", key="k"))
        with pytest.raises(LedgerError, match="Another run has the id 'run-1'"):
            ledger.add_run(run_row("run-1", key="other"))

    @pytest.mark.parametrize(
        ("ask", "words"),
        [
            (lambda ledger: ledger.run("run-2"), "Did you mean 'run-1'"),
            (lambda ledger: ledger.finish_run("none", StepState.FAILED, 1.0), "none"),
            (lambda ledger: ledger.reopen_run("none"), "none"),
            (lambda ledger: ledger.lease("lease-2"), "Did you mean 'lease-1'"),
            (lambda ledger: ledger.set_lease_state("lease-2", LeaseState.CLOSED), "lease-2"),
            (
                lambda ledger: ledger.set_attempt("run-1", "train", 2, state=StepState.RUNNING),
                "no attempt 2 at step 'train'",
            ),
        ],
    )
    def test_what_is_unknown_is_named(self, with_lease: Ledger, ask: Any, words: str):
        with pytest.raises(UnknownNameError, match=words):
            ask(with_lease)
        assert with_lease.run_by_key("none") is None

    def test_runs_come_newest_first(self, ledger: Ledger):
        for number in range(5):
            state = StepState.RUNNING if number % 2 else StepState.FAILED
            ledger.add_run(run_row(f"run-{number}", created_at=float(number), state=state))
        assert [run.run_id for run in ledger.runs(limit=3)] == ["run-4", "run-3", "run-2"]
        running = ledger.runs(states=(StepState.RUNNING,))
        assert [run.run_id for run in running] == ["run-3", "run-1"]

    def test_rows_of_several_runs_come_by_run(self, with_lease: Ledger):
        ledger, of_2 = with_lease, {"run_id": "run-2", "lease_id": "lease-2"}
        ledger.add_run(run_row("run-2", created_at=2.0, recipe_name="50%_Net"))
        ledger.add_lease(lease_row("lease-2", run_id="run-2"), max_active=4)
        ledger.put_machines([machine_row(lease_id="lease-2")])
        for step, run in (("train", {}), ("pack", of_2), ("train", {**of_2, "created_at": 0.5})):
            ledger.add_attempt(attempt_row(step, **run))
        ledger.put_trials([trial_row(1, run_id="run-2"), trial_row(2, run_id="run-2")])
        both = ("run-1", "run-2", "run-3")
        attempts = ledger.attempts_of(both)
        assert [row.step for row in attempts["run-2"]] == ["train", "pack"]
        assert attempts.keys() == {"run-1", "run-2"}
        assert [row.lease_id for row in ledger.leases_of(both)["run-2"]] == ["lease-2"]
        assert ledger.machines_of(both) == {"run-2": [machine_row(lease_id="lease-2")]}
        assert ledger.trials_counted(both) == {"run-2": {StepState.QUEUED: 2}}
        assert ledger.attempts_of(()) == ledger.machines_of(()) == ledger.trials_counted(()) == {}
        for words in ("50%_net", "N-2", "%"):
            assert [run.run_id for run in ledger.find_runs(RunFilter(text=words))] == ["run-2"]
        assert ledger.find_runs(RunFilter(text="5__")) == ()

    @pytest.mark.parametrize("given", FILTERS, ids=str)
    def test_a_filter_finds_the_runs(self, ledger: Ledger, given: str):
        put_runs(ledger)
        filters, numbers = FILTERS[given]
        found = ledger.find_runs(RunFilter.model_validate({"limit": 99, **filters}))
        assert [int(run.run_id.removeprefix("run-")) for run in found] == numbers
        assert ledger.find_runs(RunFilter.model_validate(filters), sites=["cluster"]) == ()

    def test_marks_are_set_on_all_runs_or_none(self, ledger: Ledger):
        put_runs(ledger)
        ledger.mark_runs(["run-0", "run-1"], Marks(tag=("good", "x.1"), note="so", star=True))
        ledger.mark_runs(["run-1"], Marks(tag=("good", "b"), untag=("x.1",), star=False))
        first, second = ledger.run("run-0"), ledger.run("run-1")
        assert (first.tags, first.note, first.is_starred) == (("Good", "good", "x.1"), "so", True)
        assert (second.tags, second.note, second.is_starred) == (("good", "b"), "so", False)
        for runs, marks, words in (
            (["run-0", "run-9"], Marks(note="lost"), "no run 'run-9'"),
            (["run-0", "run-1"], Marks(note="lost", untag=("x.1",)), "run-1 has no tag 'x.1'"),
        ):
            with pytest.raises(UnknownNameError, match=words):
                ledger.mark_runs(runs, marks)
        assert ledger.run("run-0").note == "so"

    def test_metrics_of_one_trial_of_each_suite_are_found(self, with_lease: Ledger):
        rows = [trial_row(number, metrics={"f1": number / 4}) for number in (1, 2)]
        with_lease.put_trials(rows)
        found = with_lease.metrics_of_trials({"run-1": 2, "run-2": 1})
        assert found == {"run-1": {"f1": 0.5}}
        assert with_lease.metrics_of_trials({"run-1": 9}) == with_lease.metrics_of_trials({}) == {}

    def test_runs_of_an_earlier_release_have_the_user_and_kind_that_other_rows_say(
        self, with_lease: Ledger
    ):
        with with_lease._database.write() as session:
            session.execute(text("UPDATE headrace_leases SET owner = 'ada'"))
            session.execute(text("UPDATE headrace_runs SET kind = '', \"user\" = ''"))
            migrations.upgrade(session.connection())
        assert (with_lease.run("run-1").user, with_lease.run("run-1").kind) == ("ada", "")
        with_lease.add_attempt(attempt_row(kind="suite"))
        with with_lease._database.write() as session:
            migrations.upgrade(session.connection())
        (found,) = with_lease.find_runs(RunFilter(kind=("suite",), user=("ada",)))
        assert found.run_id == "run-1"

    def test_packings_come_with_their_runs_and_are_found_by_what_they_gave(
        self, with_lease: Ledger
    ):
        ledger, of_2 = with_lease, {"run_id": "run-2", "created_at": 9.0}
        ledger.add_run(run_row("run-2"))
        given = {"dataset": "/d/50%", "fingerprint": "f_1"}
        for more in ({}, of_2):
            row = attempt_row("pack", state=StepState.SUCCEEDED, outputs=given, **more)
            ledger.add_attempt(row)
        for step, state in (("train", StepState.QUEUED), ("stage", StepState.SUCCEEDED)):
            ledger.add_attempt(attempt_row(step, state=state, outputs=given))
        ledger.add_attempt(attempt_row("pack", 2, state=StepState.FAILED, outputs=given))
        both = ledger.packings(9, "f_1")
        assert [(each.run_id, each.is_trained_on) for each in both] == [
            ("run-2", False), ("run-1", True),
        ]  # fmt: skip
        assert (both[0].outputs, both[0].ended_at, both[0].folder) == (given, 9.0, "/runs/run-2")
        assert [run.run_id for run in ledger.runs_of(("run-2", "x"))] == ["run-2"]
        assert [each.run_id for each in ledger.packings(1)] == ["run-2"]
        assert len(ledger.packings(9, "50%")) == 2
        assert ledger.packings(9, "f%1") == ledger.packings(9, "5__") == ()

    def test_the_first_end_of_a_run_counts(self, ledger: Ledger):
        ledger.add_run(run_row())
        ledger.finish_run("run-1", StepState.SUCCEEDED, 5.0, {"accuracy": 0.9})
        stands = ledger.finish_run("run-1", StepState.LOST, 9.0, {})
        assert (stands.state, stands.finished_at) == (StepState.SUCCEEDED, 5.0)
        assert stands.outputs == {"accuracy": 0.9}

    def test_a_reopened_run_can_end_again(self, ledger: Ledger):
        ledger.add_run(run_row())
        ledger.finish_run("run-1", StepState.FAILED, 5.0, {})
        reopened = ledger.reopen_run("run-1", "somebody else")
        assert (reopened.state, reopened.finished_at) == (StepState.RUNNING, None)
        assert reopened.owner == "somebody else"
        assert ledger.reopen_run("run-1").owner == "somebody else"
        assert ledger.finish_run("run-1", StepState.SUCCEEDED, 7.0).state is StepState.SUCCEEDED

    def test_a_run_goes_on_elsewhere(self, ledger: Ledger):
        ledger.add_run(run_row())
        ledger.change_run("run-1", site_name="other", overrides=("train.nodes=1",))
        stands = ledger.run("run-1")
        assert (stands.site_name, stands.overrides) == ("other", ("train.nodes=1",))
        assert stands.recipe_fingerprint == run_row().recipe_fingerprint

    def test_a_run_cannot_finish_as_running(self, ledger: Ledger):
        ledger.add_run(run_row())
        with pytest.raises(LedgerError, match="cannot finish as 'running'"):
            ledger.finish_run("run-1", StepState.RUNNING, 5.0)

    # --- leases

    def test_a_lease_is_entered_once(self, with_lease: Ledger):
        with_lease.add_lease(lease_row(role="other"), max_active=1)
        assert with_lease.leases() == (lease_row(),)

    def test_a_full_site_takes_no_lease(self, with_lease: Ledger):
        with pytest.raises(CapacityError, match=r"limits\.max_leases") as caught:
            with_lease.add_lease(lease_row("lease-2"), max_active=1)
        assert "lease-1 (run run-1)" in str(caught.value)
        with_lease.add_lease(lease_row("lease-2", site_name="other"), max_active=1)
        with_lease.set_lease_state("lease-1", LeaseState.CLOSED)
        with_lease.add_lease(lease_row("lease-3"), max_active=1)
        assert {lease.lease_id for lease in with_lease.active_leases()} == {"lease-2", "lease-3"}
        assert [lease.lease_id for lease in with_lease.active_leases("laptop")] == ["lease-3"]

    def test_twenty_threads_take_three_places(self, url: str, ledger: Ledger):
        ledger.add_run(run_row())
        with ThreadPoolExecutor(20) as pool:
            taken = list(pool.map(lambda number: take_place(url, number), range(20)))
        assert sum(taken) == 3
        assert ledger.summary().num_leases == 3

    @pytest.mark.slow
    def test_twenty_processes_of_two_users_take_places_in_turn(self, url: str, ledger: Ledger):
        """Two of eighteen leases of one, both of the other's, however many ask at once."""
        ledger.add_run(run_row())
        for number in range(4):
            ledger.add_lease(lease_row(f"before-{number}"), max_active=4)
        assert sum(in_processes(wait_for_place, url)) == 4
        owners = [each.owner for each in ledger.active_leases("laptop")]
        assert sorted(owners) == ["ada", "ada", "bob", "bob"]

    def test_a_place_goes_to_who_has_fewest_then_took_least_then_waits_longest(
        self, ledger: Ledger
    ):
        ledger.add_run(run_row())

        def ask(name: str, **more: Any) -> bool:
            owner = name.rstrip("0123456789")
            row = lease_row(name, key=name, owner=owner)
            try:
                ledger.add_lease(row, **{"max_active": 3, "waits": True, **more})
            except CapacityError as error:
                said.append(error.what)
                return False
            return True

        def end(name: str) -> None:
            ledger.set_lease_state(name, LeaseState.CLOSED, ended_at=9.0)

        said: list[str] = []
        assert [ask(name) for name in ("ada1", "ada2", "bob1")] == [True] * 3
        for owner, ended_at in (("cy", time.time()), ("dan", day("2020-01-01"))):
            past = lease_row(f"past-{owner}", owner=owner, state=LeaseState.CLOSED)
            past.ended_at = ended_at
            ledger.add_lease(past, max_active=9)
            times = {"started_at": ended_at, "ended_at": ended_at}
            ledger.put_machines([machine_row(lease_id=past.lease_id, billed_s=9.0, **times)])
        waiting = ("ada3", "bob2", "cy1", "dan1", "dan2")
        assert [ask(name) for name in waiting] == [False] * 5
        assert ledger.num_before("dan1", max_active=3) is None
        end("ada2")  # ada and bob have one each, cy and dan none; cy has taken more than dan
        assert [ask(name) for name in ("ada3", "bob2", "cy1", "dan2")] == [False] * 4
        assert "come first, with fewer leases open" in said[-1]
        assert "leases of dan" in said[-1]
        assert [ledger.num_before(name, 3) for name in ("dan1", "dan2", "cy1")] == [0, 4, 1]
        assert [ledger.num_before(name, 5) for name in ("dan1", "dan2", "cy1")] == [0, 4, 0]
        assert ledger.num_before("bob2", max_active=3, max_owner=1) is None
        assert ask("dan1")
        for ended, others, next_one in (
            ("bob1", ("ada3", "dan2", "cy1"), "bob2"),
            ("ada1", ("dan2", "cy1"), "ada3"),
            ("dan1", ("cy1",), "dan2"),
            ("bob2", (), "cy1"),
        ):
            end(ended)
            assert [ask(name) for name in others] == [False] * len(others), ended
            assert ask(next_one), ended
        assert [ask("fay1"), ask("eve1")] == [False] * 2  # nobody has anything
        end("cy1")
        assert [ask("eve1"), ask("fay1")] == [False, True]

    def test_who_waits_no_more_keeps_nobody_from_a_place(
        self, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
    ):
        """pains 11: a process that was killed, a run that has ended, or one that asked once."""
        for name in ("ada", "bob", "cy"):
            ledger.add_run(run_row(name))

        def ask(name: str, owner: str, **more: Any) -> bool:
            row = lease_row(name, key=name, owner=owner, run_id=owner)
            try:
                ledger.add_lease(row, **{"max_active": 1, "waits": True, **more})
            except CapacityError:
                return False
            return True

        assert ask("ada1", "ada")
        assert not ask("bob1", "bob")
        assert not ask("cy1", "cy", waits=False)  # it does not come again
        assert not ask("ada2", "ada")
        assert not ask("ada2", "ada", max_active=2)  # bob1 is called
        assert ask("bob1", "bob", max_active=2)
        assert not ask("bob2", "bob")
        ledger.finish_run("bob", StepState.CANCELLED, 2.0)
        assert ask("ada2", "ada", max_active=3)
        assert not ask("cy2", "cy")
        assert not ask("ada3", "ada")
        monkeypatch.setattr(lease_slots, "PATIENCE_S", 0.0)
        assert ledger.num_before("ada3", 4) == ledger.num_before("ada3", 4) == 1
        assert not ask("ada3", "ada", max_active=4)  # cy2 is called, and is not there any more
        assert ledger.num_before("ada3", 4) == 0
        assert ask("ada3", "ada", max_active=4)
        assert ledger.num_before("ada3", 1) == 0  # it has its place

    def test_a_user_has_so_many_leases_and_others_go_on(self, ledger: Ledger):
        ledger.add_run(run_row())
        most = {"max_active": 3, "max_owner": 1, "waits": True}
        ledger.add_lease(lease_row("ada1", key="ada1", owner="ada"), **most)
        with pytest.raises(OwnLeasesError, match=r"User ada has 1 lease open .*: ada1 \(run run-1"):
            ledger.add_lease(lease_row("ada2", key="ada2", owner="ada"), **most)
        ledger.add_lease(lease_row("bob1", key="bob1", owner="bob"), **most)
        assert [each.lease_id for each in ledger.active_leases("laptop")] == ["ada1", "bob1"]

    def test_a_lease_gets_its_addresses(self, with_lease: Ledger):
        known = {"job_ids": ("17", "18"), "dashboard_url": "http://127.0.0.1:8787"}
        stands = with_lease.set_lease_state("lease-1", LeaseState.READY, ready_at=3.0, **known)
        assert stands == with_lease.lease("lease-1")
        assert (stands.job_ids, stands.ready_at, stands.ended_at) == (("17", "18"), 3.0, None)

    def test_a_lease_that_has_ended_stays_ended(self, with_lease: Ledger):
        with_lease.set_lease_state("lease-1", LeaseState.LOST, why_ended="no heartbeat")
        stands = with_lease.set_lease_state("lease-1", LeaseState.READY, ready_at=3.0)
        assert (stands.state, stands.why_ended) == (LeaseState.LOST, "no heartbeat")
        assert stands.ready_at is None

    def test_leases_that_have_ended_come_by_their_ends(self, with_lease: Ledger):
        for number, ended_at in ((2, 9.0), (3, 7.0), (4, 8.0)):
            lease_id = f"lease-{number}"
            with_lease.add_lease(lease_row(lease_id), max_active=9)
            with_lease.set_lease_state(lease_id, LeaseState.CLOSED, ended_at=ended_at)
        ended = [row.lease_id for row in with_lease.ended_leases()]
        assert ended == ["lease-2", "lease-4", "lease-3"]
        assert [row.lease_id for row in with_lease.ended_leases(1)] == ["lease-2"]
        with_lease.put_machines([machine_row(lease_id="lease-2", ended_at=9.0)])
        with_lease.put_machines([machine_row(lease_id="lease-3"), machine_row(seen_at=7.0)])
        uncounted = [row.lease_id for row in with_lease.uncounted_leases(since=8.0)]
        assert uncounted == ["lease-3", "lease-4"]
        assert with_lease.counted_until() == {"run-1": 3.0}  # the oldest
        assert with_lease.counted_until(sites=["elsewhere"]) == {}

    def test_the_newest_lease_of_a_key(self, with_lease: Ledger):
        with_lease.add_lease(lease_row("lease-2", created_at=2.0), max_active=4)
        newest = with_lease.latest_lease("run-1/gpu")
        assert newest.lease_id == "lease-2"
        assert with_lease.latest_lease("run-1/cpu") is None
        assert [lease.lease_id for lease in with_lease.leases("run-1")] == ["lease-2", "lease-1"]
        assert with_lease.leases("run-2") == ()

    # --- machines

    def test_machines_come_back_as_they_were_and_their_ends_stay(self, with_lease: Ledger):
        """pains 37."""
        first = machine_row("i-1", price_as_of="2026-06-17", usd_per_hour=0.0)
        with_lease.put_machines([machine_row("i-2", started_at=9.0), first])
        assert with_lease.machines(run_id="run-1") == (first, machine_row("i-2", started_at=9.0))
        guess = machine_row("i-1", ended_at=90.0, is_estimate=True)
        told = machine_row("i-1", ended_at=80.0, usd_per_hour=0.5, price_source="site file")
        for row in (guess, told, machine_row("i-1", ended_at=99.0), machine_row("i-1")):
            with_lease.put_machines([row])
        assert with_lease.machines(lease_id="lease-1")[0] == told
        assert [row.machine_id for row in with_lease.machines(only_open=True)] == ["i-2"]
        assert with_lease.machines(run_id="run-2") == with_lease.machines(lease_id="x") == ()

    # --- trials

    def test_trials_come_back_as_they_were_with_how_far_the_journal_was_read(
        self, with_lease: Ledger
    ):
        first = trial_row(1, values={"lr": math.inf, "é": [1, None]}, metrics={"loss": math.inf})
        with_lease.put_trials([first, trial_row(2)], part=JournalPart("run-1", 0, 120))
        assert with_lease.trial("run-1", 1) == first
        assert with_lease.journal_read("run-1") == 120
        ended = trial_row(2, state=StepState.SUCCEEDED, objective=0.5, objectives=(0.5, 7.0))
        with_lease.put_machines([machine_row(billed_s=3600.0, usd_per_hour=1.0)])
        used = usage_row(2, node_s=7200.0)
        part = JournalPart("run-1", 120, 300)
        assert with_lease.put_trials([ended], [used], part) is True
        assert with_lease.trials("run-1") == (first, ended)
        assert [row.usd for row in with_lease.trials("run-1", order="-usd")] == [2.0, None]
        assert with_lease.usage("run-1") == (used,)
        stale = trial_row(2, state=StepState.RUNNING)
        assert with_lease.put_trials([stale], [usage_row(2, node_s=9.0)], part) is False
        assert with_lease.trial("run-1", 2) == ended
        assert with_lease.usage("run-1") == (used,)
        assert with_lease.journal_read("run-1") == 300

    def test_a_trial_costs_what_all_its_attempts_do_at_the_price_of_their_machines(
        self, with_lease: Ledger
    ):
        """pains 37: and another price changes what it has cost."""
        machines = [machine_row("dear", usd_per_hour=3600.0), machine_row("cheap", usd_per_hour=36)]
        with_lease.put_machines(machines)
        both = [usage_row(1, machine_id="dear", energy_wh=2.0), usage_row(1, attempt=2)]
        with_lease.put_trials([trial_row(n) for n in (1, 2, 3, 4)], both)
        lost = usage_row(3, machine_id="unknown", cpu_energy_wh=1.0)
        with_lease.put_trials(
            [], [usage_row(2, machine_id="cheap", energy_wh=1.0, cpu_energy_wh=0.5), lost]
        )

        def usd() -> list[float | None]:
            return [row.usd for row in with_lease.trials("run-1")]

        assert usd() == [10 + 5.05, 0.1, None, None]
        assert [row.energy_wh for row in with_lease.trials("run-1")] == [None, 1.5, 1.0, None]
        with_lease.correct_prices([machine_row("cheap", usd_per_hour=72.0, price_source="bill")])
        assert usd() == [pytest.approx(10 + 5.1), 0.2, None, None]
        with_lease.correct_prices([machine_row("cheap")])
        assert usd() == [None, None, None, None]

    def test_what_a_part_takes_is_its_suites_and_counts_once(self, with_lease: Ledger):
        with_lease.add_run(run_row("part", key="run-1/at/box", kind="part"))
        with_lease.add_lease(lease_row("lease-2", run_id="part", site_name="box"), max_active=4)
        paid = {"usd_per_hour": 3600.0, "billed_s": 30.0}
        with_lease.put_machines(machine_row(lease_id=f"lease-{n}", **paid) for n in (1, 2))
        at_box = usage_row(1, run_id="part", lease_id="lease-2", attempt=2)
        with_lease.put_trials([trial_row(1)], [usage_row(1), at_box])
        assert [row.usd for row in with_lease.trials("run-1")] == [20.0]
        assert with_lease.usage("run-1") == (usage_row(1), at_box)
        assert [(x.name, x.usd) for x in with_lease.usage_sums("run")] == [("run-1", 60.0)]
        sites = {x.name: x.usd for x in with_lease.usage_sums("site", run_id="run-1")}
        assert sites == {"laptop": 30.0, "box": 30.0}
        assert {x: len(y) for x, y in with_lease.machines_of(["run-1", "part"]).items()} == {
            "run-1": 2, "part": 1
        }  # fmt: skip
        assert [row.run_id for row in with_lease.parts_of("run-1")] == ["part"]
        with_lease.put_trials([], part=JournalPart("run-1", 0, 9), withdrawn=[1])
        assert with_lease.trials("run-1") == ()

    def test_rows_of_trials_and_the_mark_in_the_journal_are_entered_together_or_not(
        self, with_lease: Ledger
    ):
        part = JournalPart("run-1", 0, 120)
        for usage in ([usage_row(lease_id="none")], [usage_row(run_id="none")]):
            with pytest.raises(LedgerError, match="refuses an entry"):
                with_lease.put_trials([trial_row()], usage, part)
        assert with_lease.trials("run-1") == ()
        assert with_lease.journal_read("run-1") == 0
        assert with_lease.usage_sums() == ()

    def test_trials_are_ordered_and_counted(self, with_lease: Ledger):
        values = {1: 0.5, 2: None, 3: 0.1, 4: math.nan, 5: 0.9}
        done = {"state": StepState.SUCCEEDED}
        rows = [trial_row(each, objective=value, **done) for each, value in values.items()]
        with_lease.put_trials([*rows, trial_row(6), *(trial_row(n) for n in range(7, 600))])

        def numbers(order: str, **which: Any) -> list[int]:
            found = with_lease.trials("run-1", StepState.SUCCEEDED, order, **which)
            return [row.number for row in found]

        assert numbers("objective") == [3, 1, 5, 2, 4]
        assert numbers("-objective", limit=3) == [5, 1, 3]
        assert with_lease.trial("run-1", 4).objective is None
        counts = {StepState.SUCCEEDED: 5, StepState.QUEUED: 594}
        assert with_lease.trials_counted(["run-1"]) == {"run-1": counts}
        assert len(with_lease.trials_numbered("run-1", range(1, 700))) == 599
        with pytest.raises(UnknownNameError, match="Suite run-1 has no trial 700"):
            with_lease.trial("run-1", 700)
        with pytest.raises(UnknownNameError, match="Did you mean 'objective'"):
            with_lease.trials("run-1", order="objectiv")

    # --- usage

    @pytest.fixture
    def used(self, with_lease: Ledger) -> Ledger:
        """Two leases in October: of three hours at $1, and of one whose price is unknown."""
        end, hour = day("2026-10-31") + 60, 3600.0
        for name, owner in (("lease-2", "ann"), ("lease-3", "bob")):
            row = lease_row(name, owner=owner, state=LeaseState.CLOSED)
            row.ended_at = end
            with_lease.add_lease(row, max_active=9)
        of_both = {"lease_id": "lease-2", "billed_s": 1.5 * hour, "usd_per_hour": 1.0}
        with_lease.put_machines(
            [
                *(machine_row(name, **of_both) for name in ("node-0", "node-1")),
                machine_row(lease_id="lease-3", billed_s=hour),
            ]
        )
        took = {"lease_id": "lease-2", "until": end, "started_at": end - hour}
        with_lease.put_usage(
            [
                usage_row(1, node_s=hour, gpus=2.0, cause="lost", samples=2**40, **took),
                usage_row(1, attempt=2, node_s=hour / 2, queue_s=7.0, train_s=1800.0,
                          staging_s=900.0, energy_wh=50.0, stored_bytes=10**9, **took),
                usage_row(2, lease_id="lease-3", until=end, node_s=hour, fetched_bytes=5 * 10**9),
            ]
        )  # fmt: skip
        return with_lease

    def test_usage_is_summed_by_what_it_has_in_common(self, used: Ledger):
        """pains 37: a trial's cost is that of all its attempts, the failed ones included."""

        def sums(by: By, **which: Any) -> dict[str, tuple[int, int, float | None]]:
            found = used.usage_sums(by, **which)
            return {each.name: (each.attempts, each.unpriced, each.usd) for each in found}

        assert sums("trial", run_id="run-1") == {
            "0": (0, 1, 1.5),
            "1": (2, 0, 1.5),
            "2": (1, 1, None),
        }
        assert [each.name for each in used.usage_sums("trial", run_id="run-1", limit=1)] == ["0"]
        assert sums("user") == {"ann": (2, 0, 3.0), "bob": (1, 2, None)}
        assert sums("month") == sums("month", since="2026-10-31") == {"2026-10": (3, 2, 3.0)}
        assert sums("month", since="2026-11") == {}
        assert sums("cause") == {"idle": (0, 1, 1.5), "lost": (1, 0, 1.0), "succeeded": (2, 1, 0.5)}
        assert sums("kind") == {"idle": (0, 1, 1.5), "trial": (3, 1, 1.5)}
        assert sums("run") == {"run-1": (3, 2, 3.0)}
        assert (
            sums("user", owner="bob") == sums("user", lease_id="lease-3") == {"bob": (1, 2, None)}
        )
        assert (
            sums("user", site_name=()) == sums("user", since="2026-10", before="2026-10-31") == {}
        )
        with pytest.raises(LedgerError, match="needs one suite"):
            used.usage_sums("trial")

    def test_shares_of_idle_time_staging_and_failure_are_computed(self, used: Ledger):
        hour = 3600.0
        ann, bob = used.usage_sums("user")
        assert (ann.node_s, ann.gpu_s, ann.queue_s) == (3 * hour, 2 * hour, 7.0)
        assert (ann.failed_s, ann.staging_s, ann.idle_s) == (hour, hour / 8, 1.5 * hour + hour / 8)
        assert (ann.energy_wh, ann.measured_s, ann.samples) == (50.0, hour / 2, 2.0**40)
        assert (bob.energy_wh, bob.measured_s, bob.idle_s) == (None, 0.0, 0.0)
        assert used.usage_sums(lease_id="lease-2")[0][1:] == ann[1:]

    def test_bytes_have_the_prices_of_their_site(self, used: Ledger):
        prices = {
            "laptop": SitePrices(usd_per_gb_month=0.02),
            "elsewhere": SitePrices(usd_per_gb_month=9.0, usd_per_fetched_gb=9.0),
        }
        (found,) = used.usage_sums(prices=prices)
        assert (found.usd_storage, found.usd_transfer) == (0.02, None)
        (found,) = used.usage_sums(prices={"laptop": SitePrices(usd_per_fetched_gb=0.1)})
        assert (found.usd_storage, found.usd_transfer) == (None, pytest.approx(0.5))

    def test_usage_that_is_replaced_leaves_no_trace_in_the_sums(self, used: Ledger):
        (before,) = used.usage_sums()
        rows = used.usage("run-1")
        used.put_usage([rows[0].model_copy(update={"node_s": 1.0}), rows[0]])
        assert used.usage_sums() == (before,)

    # --- attempts

    def test_no_row_is_an_orphan(self, with_lease: Ledger):
        for enter in (
            lambda: with_lease.add_lease(lease_row("lease-2", run_id="none"), max_active=4),
            lambda: with_lease.put_machines([machine_row(lease_id="none")]),
            lambda: with_lease.add_attempt(attempt_row(run_id="none")),
            lambda: with_lease.add_attempt(attempt_row(lease_id="none")),
        ):
            with pytest.raises(LedgerError, match="refuses an entry"):
                enter()
        assert with_lease.leases() == (lease_row(),)
        assert with_lease.attempts("run-1") == with_lease.machines() == ()

    def test_an_attempt_is_entered_once(self, with_lease: Ledger):
        first = with_lease.add_attempt(attempt_row(created_at=1.0))
        with_lease.set_attempt("run-1", "train", 1, state=StepState.RUNNING, number=7)
        again = with_lease.add_attempt(attempt_row(created_at=2.0))
        assert first == attempt_row(created_at=1.0)
        assert (again.number, again.created_at) == (7, 1.0)

    def test_two_attempts_cannot_share_a_key(self, with_lease: Ledger):
        with_lease.add_attempt(attempt_row("train", 1))
        with pytest.raises(LedgerError, match="Another attempt has the key"):
            with_lease.add_attempt(attempt_row("train", 2, key="run-1/train/1"))

    def test_attempts_come_in_order(self, with_lease: Ledger):
        for number in range(1, 12):
            with_lease.add_attempt(attempt_row("train", number, created_at=10.0 + number))
        with_lease.add_attempt(attempt_row("pack", 1, created_at=1.0))
        assert [row.step for row in with_lease.attempts("run-1")] == ["pack", *["train"] * 11]
        numbers = [row.attempt for row in with_lease.attempts("run-1", "train")]
        assert numbers == list(range(1, 12))
        latest = with_lease.latest_attempt("run-1", "train")
        assert latest.attempt == 11
        assert with_lease.latest_attempt("run-1", "evaluate") is None

    def test_changes_that_are_not_given_change_nothing(self, with_lease: Ledger):
        with_lease.add_attempt(attempt_row())
        with_lease.set_attempt("run-1", "train", 1, number=3)
        stands = with_lease.set_attempt(
            "run-1", "train", 1, state=StepState.RUNNING, started_at=4.0, outputs=None
        )
        assert (stands.number, stands.started_at, stands.outputs) == (3, 4.0, {})

    def test_a_change_names_columns(self, with_lease: Ledger):
        with_lease.add_attempt(attempt_row())
        with pytest.raises(LedgerError, match="finished"):
            with_lease.set_attempt("run-1", "train", 1, finished=4.0)
        with pytest.raises(LedgerError, match="why"):
            with_lease.set_lease_state("lease-1", LeaseState.LOST, why="no heartbeat")

    @pytest.mark.parametrize("later", [StepState.RUNNING, StepState.LOST, StepState.SUCCEEDED])
    def test_an_attempt_that_has_ended_stays_as_it_is(self, with_lease: Ledger, later: StepState):
        with_lease.add_attempt(attempt_row())
        failed = {"state": StepState.FAILED, "failure_class": FailureClass.USER_ERROR}
        details = {"message": "The model raised", "finished_at": 5.0, "outputs": {"epochs": 2}}
        ended = with_lease.set_attempt("run-1", "train", 1, **failed, **details)
        stands = with_lease.set_attempt("run-1", "train", 1, state=later, message="later")
        assert stands == ended
        assert stands.failure_class is FailureClass.USER_ERROR


class TestSqliteLedger(LedgerContract):
    """The contract on a SQLite file."""

    @pytest.fixture
    def empty(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/new/ledger.db"

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        file = tmp_path / "ledger.db"
        file.write_bytes(new_ledger())
        return f"sqlite:///{file}"

    @staticmethod
    def backed_up(url: str) -> str:
        """URL of a copy, made in the way that the docs tell."""
        copy = f"{url}-copy"
        with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
            database.execute("VACUUM INTO ?", (copy.removeprefix("sqlite:///"),))
        return copy

    def test_the_file_is_in_wal_mode(self, empty: str):
        Ledger.open(empty)
        with Database(empty).read() as connection:
            assert connection.scalar(text("PRAGMA journal_mode")) == "wal"

    def test_no_row_of_usage_is_looked_for_by_a_scan(self, with_lease: Ledger):
        """A million of them would be read for each few that are entered."""
        asked: list[tuple[str, Any]] = []

        def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
            asked.append((statement, values))

        engine = with_lease._database._backend.engine
        event.listen(engine, "before_cursor_execute", note)
        with_lease.put_usage([usage_row(1), usage_row(2)])
        with_lease.usage("run-1", trial=1)
        with_lease.trials("run-1", order="usd")
        with_lease.usage_sums("kind", lease_id="lease-1")
        with_lease.usage_sums("trial", run_id="run-1")
        event.remove(engine, "before_cursor_execute", note)
        queries = [each for each in asked if re.match("SELECT|WITH|UPDATE", each[0])]
        assert len(queries) == 4
        with engine.connect() as connection:
            for statement, values in queries:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
                told = [row[-1] for row in plan]
                assert any(re.match("SEARCH (headrace_usage|u) USING", each) for each in told), told
                is_update = statement.startswith("UPDATE")
                assert not is_update or any("run_id=? AND step=? AND trial=?" in x for x in told)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.mark.postgres
class TestPostgresLedger(LedgerContract):
    """The contract on a PostgreSQL server."""

    @pytest.fixture
    def empty(self, server: PostgresServer) -> str:
        return server.new_database()

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, server: PostgresServer) -> str | None:
        url = server.new_database()
        Ledger.open(url)
        return make_url(url).database

    @pytest.fixture
    def url(self, server: PostgresServer, opened: str) -> str:
        return server.new_database(opened)

    @pytest.fixture(autouse=True)
    def _server(self, server: PostgresServer) -> None:
        self.server = server

    def backed_up(self, url: str) -> str:
        """URL of a copy, made in the way that the docs tell."""
        copy = self.server.new_database()
        dump = subprocess.run(
            ["pg_dump", "--format=custom", url], check=True, capture_output=True
        ).stdout
        restore = ["pg_restore", "--no-owner", f"--dbname={copy}"]
        subprocess.run(restore, input=dump, check=True, capture_output=True)
        return copy

    def test_a_missing_database_is_named_without_the_password(self, url: str):
        gone = url.replace("/test_", "/gone_")
        with pytest.raises(LedgerError, match="does not exist") as caught:
            Ledger.open(gone)
        assert "secret" not in str(caught.value)
        assert "HEADRACE_LEDGER" in str(caught.value)

    def test_a_server_that_is_started_again_is_waited_for(
        self, url: str, server: PostgresServer, caplog: pytest.LogCaptureFixture
    ):
        ledger = Ledger.open(url)
        with ThreadPoolExecutor(1) as pool:
            server.stop()
            asked = pool.submit(ledger.runs)
            wait_until(lambda: "waiting for" in caplog.text, 30, "the ledger to be missed")
            server.start()
            assert asked.result(30) == ()
        assert "secret" not in caplog.text


def set_revision(url: str, revision: str) -> None:
    with Database(url).write() as connection:
        connection.execute(text(f"UPDATE headrace_schema SET version_num = '{revision}'"))


def get_revision(url: str) -> str:
    with Database(url).read() as connection:
        return str(connection.scalar(text("SELECT version_num FROM headrace_schema")))
