"""What runs look like in the terminal: failures, results of steps, metrics and their curves."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import RenderableType

from headrace.cli.console import Console, amount, duration
from headrace.cli.view import (
    closing,
    curve,
    history_of,
    live,
    metrics_table,
    print_failures,
    remarks,
)
from headrace.cli.words import result_line
from headrace.files.layout import RunFolder
from headrace.files.lines import append_line
from headrace.states import FailureClass, StepState
from headrace.status.run_details import RunDetails
from headrace.status.step import StepView
from headrace.steps.history import History, HistoryRow, NodeLoad, NodeRow, RankRow, training_file
from headrace.steps.mailbox import Progress, StepStatus

TRACE = 'Traceback (most recent call last):\n  File "model.py", line 7\nValueError: [/bad] [red]\n'


def step(name: str, state: StepState | None = StepState.SUCCEEDED, **known: Any) -> StepView:
    return StepView(name=name, state=state, **known)


FAILED = step(
    "train",
    StepState.FAILED,
    attempt=1,
    elapsed_s=4.0,
    message="Rank 1: training_step raised ValueError: [/bad] [red]\n  Correct the code.",
    failure_class=FailureClass.USER_ERROR,
    trace=TRACE,
    folder="/leases/x/steps/000001",
)


def view(
    *steps: StepView, state: StepState = StepState.FAILED, owner: str = "cli:h:1:2", **known: Any
) -> RunDetails:
    return RunDetails(
        run_id="digits-1", recipe="digits", site="laptop", state=state, owner=owner,
        elapsed_s=75.0, created_at=1.0, folder="/runs/[digits-1]", steps=steps,
        asked=() if owner.startswith("airflow") else ("run", "my recipe.yaml", "--site", "laptop"),
    ).model_copy(update=known)  # fmt: skip


def shown(part: RenderableType, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(part)
    return console.file.getvalue()


def failures(*steps: StepView, width: int = 120, **known: Any) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_failures(view(*steps, **known), console)
    return console.file.getvalue()


def training(state: StepState = StepState.RUNNING, **status: Any) -> StepView:
    return step("train", state, status=StepStatus(state=StepState.RUNNING, **status))


def test_a_failure_is_told_once_with_class_trace_logs_and_the_way_on():
    text = failures(FAILED)
    assert text.startswith("train failed (user_error): Rank 1: training_step raised ValueError: ")
    assert text.count("Traceback") == 1
    assert text.count("Correct the code.") == 1
    assert "headrace logs digits-1 train" in text
    assert text.splitlines()[-2:] == [
        "  after a correction of recipe or site: headrace run 'my recipe.yaml' --site laptop",
        "  after any other correction, with the recipe of this run: headrace resume digits-1",
    ]
    text = failures(step("pack"), FAILED)
    assert "--site laptop (the packed dataset is used again)\n" in text
    assert "headrace evaluate" not in text
    way = "headrace evaluate digits-1 evaluate.KEY=VALUE (nothing is trained again)\n"
    text = failures(step("pack"), step("train"), FAILED.model_copy(update={"name": "evaluate"}))
    assert f"  after a correction of the recipe's evaluate: {way}" in text


def test_after_a_fault_of_the_machine_only_going_on_helps():
    lost = FAILED.model_copy(update={"failure_class": FailureClass.LOST})
    assert failures(lost).rstrip().endswith("headrace resume digits-1")


def test_what_users_write_is_no_markup():
    """A message with square brackets is neither eaten nor taken for a style."""
    text = failures(FAILED) + shown(closing(view(FAILED)))
    assert text.count("[/bad] [red]") == 1
    assert "/runs/[digits-1]" in text


@pytest.mark.parametrize(
    ("raised", "end"),
    [
        ("ValueError: sizes differ:\n\tsize of a\n  size of b", ""),
        ("ModelError: sizes differ", "my_package.models."),
    ],
)
def test_an_error_is_shown_once_however_long(raised, end):
    """In the message, and not again at the end of the trace or in the table."""
    trace = f'Traceback (most recent call last):\n  File "model.py", line 7\n{end}{raised}\n'
    message = f"Rank 1: training_step raised {raised}\n  Correct the code."
    failed = FAILED.model_copy(update={"message": message, "trace": trace})
    text = failures(failed) + shown(closing(view(failed)))
    assert text.count("sizes differ") == 1
    assert '  File "model.py", line 7\n  logs: ' in text


def test_a_trace_that_says_more_than_the_message_is_shown_whole():
    assert TRACE in failures(FAILED.model_copy(update={"message": "The driver ended."}))


def test_messages_and_paths_are_not_broken_into_lines():
    long = FAILED.model_copy(update={"message": "The folder " + "/very/long" * 30, "trace": ""})
    assert "/very/long" * 30 in failures(long, width=40)


def test_a_run_of_airflow_is_not_resumed_from_the_terminal():
    assert "resume" not in failures(FAILED, owner="airflow:headrace_train:1")


def test_a_run_that_succeeded_has_no_failures():
    assert failures(step("pack", attempt=2), state=StepState.SUCCEEDED) == ""


def test_the_closing_tells_which_run_it_is_and_what_its_steps_gave():
    packed = step("pack", attempt=1, outputs={"num_samples": 5})
    text = shown(closing(view(packed, state=StepState.SUCCEEDED)))
    assert text.startswith("digits-1 · digits on laptop · succeeded · 1:15\n")
    assert "5 samples" in text


STREAMED = {"node-0": {"peer_bytes": 2e9, "source_bytes": 0},
            "node-1": {"peer_bytes": 3e9, "source_bytes": 4e8}}  # fmt: skip
STAGED = {"num_bytes": 4e9, "copied_bytes": 8e9, "bytes_per_s": 3.2e9, "nodes": [{"tier": "shm"}]}
METRICS = {"accuracy": 0.9, "f1": 0.5, "recall": 0.25, "auroc": 0.1}
TEST = {"split": "test", "evaluated": "/c/final.ckpt", "metrics": METRICS}
VAL = {"split": "val", "evaluated": "/c/kept-000000007.ckpt", "metrics": METRICS}
VANISHED = "restarted once: a node vanished"


@pytest.mark.parametrize(
    ("name", "outputs", "words"),
    [
        ("pack", {"num_samples": 39, "num_quarantined": 1, "reused": True},
         "39 samples, 1 more in quarantine (headrace inspect shows why), reused"),
        ("pack", {"num_samples": 40, "passed_over": ["/d/manifest.json is damaged\n  Restore it"]},
         "40 samples, a new dataset, although pack.append is set: /d/manifest.json is damaged\n"
         "  Restore it"),
        ("stage", {**STAGED, "nodes": [{"tier": "shm"}] * 2}, "4GB, on 2 nodes, on shm, 3.2GB/s"),
        ("stage", {**STAGED, "copied_bytes": 0, "left_out_bytes": 5e8},
         "4GB, on shm, reused, 500MB left at the source"),
        ("train", {"steps": 1200, "metrics": {}}, "1200 steps"),
        ("train", {"steps": 1200, "skipped_samples": 7, "skipped_shards": ["a", "b"],
                   "streamed": STREAMED, "problem": "checkpoints are not copied to /full"},
         "1200 steps, without 7 samples of 2 damaged shards, 5GB from other nodes, "
         "400MB from the source, checkpoints are not copied to /full"),
        *(("train", {"steps": steps, "restart_causes": ["a node vanished"]}, words)
          for steps, words in (
              (None, VANISHED), (0, VANISHED), (1800, f"1800 steps, {VANISHED}"))),
        ("train", {"metrics": {"f1": 0.5}}, "f1 0.5000"),
        ("evaluate", TEST, "accuracy 0.9000, f1 0.5000, recall 0.2500"),
        ("evaluate", {**TEST, "also": [VAL]},
         "test, final: accuracy 0.9000, f1 0.5000, recall 0.2500\n"
         "val, kept-000000007: accuracy 0.9000, f1 0.5000, recall 0.2500"),
        ("suite", {"counts": {"succeeded": 3, "failed": 1}, "best": 7, "best_value": 0.25},
         "3 succeeded, 1 failed, best is trial 7: 0.25"),
    ],
)  # fmt: skip
def test_what_a_step_gave_in_words(name: str, outputs: dict, words: str):
    assert result_line(step(name, outputs=outputs)) == words


RESTARTS = ("Rank 0 on node-0: ended by signal SIGKILL", "Rank 1: ended by signal SIGBUS\n  x")
AGAIN = {"attempt": 3, "last_failure": "no such file"}


@pytest.mark.parametrize(
    ("known", "steps", "remark"),
    [
        ({"without": ("n7",)}, (),
         "Avoids n7: jobs failed there; details: headrace lease show LEASE"),
        ({"suspects": ("n7",)}, (),
         "Its jobs failed on n7, and the batch system cannot exclude nodes; "
         "details: headrace lease show LEASE"),
        ({}, (step("train", StepState.RUNNING, restarts=RESTARTS),),
         "train: restarted 2 times, the last: Rank 1: ended by signal SIGBUS"),
        ({}, (step("train", StepState.RUNNING, failures=2, **AGAIN),),
         "train: failed 2 times without progress, the last: no such file"),
        ({}, (step("train", StepState.RUNNING, failures=1, **AGAIN),),
         "train: failed once without progress: no such file"),
        ({"state": StepState.FAILED}, (FAILED.model_copy(update={"failures": 2}),), None),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_run_is_told(known: dict, steps: tuple, remark: str | None):
    run = view(*steps, **{"owner": "airflow:x", "state": StepState.RUNNING, **known})
    assert list(remarks(run)) == ([] if remark is None else [remark])


def test_a_running_training_shows_the_newest_and_the_best_metric():
    metrics = {"val/acc": 0.91234, "best val/acc": 0.95, "loss": 0.1, "samples_per_s": 3.0}
    text = shown(live(view(training(metrics=metrics), state=StepState.RUNNING)))
    assert re.search(r"loss +0.1 *\n", text)
    assert re.search(r"val/acc +0.9123 +0.95 *\n", text)
    assert "val/acc" not in shown(live(view(training(StepState.FAILED, metrics=metrics))))


def test_how_busy_nodes_and_ranks_are_is_told_while_they_train():
    node = NodeRow(at=1.0, node="n0", cpu=0.75, memory=0.5, gpu=0.25, network_in_bytes_per_s=2e6)
    ranks = tuple(
        RankRow(at=1.0, rank=rank, node="n0", cores=rank, rss_bytes=rank * 10**9)
        for rank in (1, 3, 2)
    )
    use = NodeLoad(nodes=(node,) * 5, ranks=ranks)
    text = shown(live(view(state=StepState.RUNNING, use=use)))
    assert text.count("n0: CPU 75%, GPUs 25%, memory 50%, network in 2MB/s\n") == 4
    assert "… and 1 more nodes: headrace status --json" in text
    assert "ranks: 2 cores each, the most memory has rank 3: 3GB" in text


def test_the_live_table_shows_progress_rate_and_time_left():
    progress = Progress(done=30, total=120, unit="steps", phase="epoch 1/4 [x]")
    running = training(progress=progress, rate=2.5, eta_s=36.0)
    running = running.model_copy(update={"attempt": 2, "elapsed_s": 12.0})
    text = shown(live(view(running, step("evaluate", None), state=StepState.RUNNING)), width=160)
    for part in ("running (2)", "epoch 1/4 [x] · 2.5 steps/s · 25 % · 36 s left", "12.0 s"):
        assert part in text
    assert "waiting" in text


def test_nothing_of_a_run_is_cut_at_80_columns():
    name, metric = "resnet-50-imagenet-20260102-030405-0a1b2c3d", "val/" + "balanced_" * 4
    progress = Progress(done=30, total=12_000, unit="steps", phase="epoch 1/4, validation")
    metrics = {metric: 0.5, f"best {metric}": 0.25}
    running = training(progress=progress, rate=1234.5, eta_s=360_000.0, metrics=metrics)
    steps = (running.model_copy(update={"attempt": 12}), step("evaluate", None))
    known = {"run_id": name, "recipe": name, "dashboard_url": f"http://{name}:8787/status"}
    text = shown(live(view(*steps, state=StepState.RUNNING, **known)), width=80)
    whole_text = re.sub(r"\s", "", text)
    assert "…" not in text
    for whole in (name, f"{name}onlaptop", metric, "1.23e+03steps/s", "100.0hleft", "running(12)"):
        assert whole in whole_text, whole
    assert f"Daskdashboardhttp://{name}:8787/status" in whole_text


@pytest.mark.parametrize(
    ("words", "value", "text"),
    [
        (duration, None, ""), (duration, 0, "0.0 s"), (duration, 59.94, "59.9 s"),
        (duration, 59.96, "1:00"), (duration, 3661, "1:01:01"),
        (amount, None, ""), (amount, 0, "0"), (amount, 0.1234, "0.123"), (amount, 950, "950"),
        (amount, 1797, "1797"), (amount, 12_345, "12.3k"), (amount, 999_999, "1M"),
        (amount, 3.2e9, "3.2G"),
    ],
)  # fmt: skip
def test_durations_and_amounts(words, value, text):
    assert words(value) == text


@pytest.mark.parametrize(
    ("values", "blocks"),
    [
        ((), ""), ((1.0,), ""), ((1.0, math.nan), ""), ((0.0, 1.0), "▁█"), ((2.0, 2.0, 2.0), "▁▁▁"),
        ((0.0, 0.0, 7.0, 7.0, 3.0, 5.0), "▁█▅"),
    ],
)  # fmt: skip
def test_a_curve_goes_from_the_least_to_the_greatest(values: tuple[float, ...], blocks: str):
    assert curve(values, width=3) == blocks


def row(step: int, loss: float | None = None, **metrics: float) -> HistoryRow:
    return HistoryRow(at=step, launch=1, epoch=0, step=step, loss=loss, metrics=metrics)


def test_the_loss_comes_first_then_what_has_a_best_value():
    history = History((row(1, 0.9), row(2, 0.5, val_acc=0.25, auc=0.5), row(3, 0.1, val_acc=0.75)))
    newest = {"auc": 0.5, "val_acc": 0.7512345, "best val_acc": 0.75, "samples_per_s": 3.0}
    table = metrics_table(newest, history)
    assert [line.split() for line in shown(table, width=80).splitlines()[1:]] == [
        ["loss", "0.1", "█▅▁"],
        ["val_acc", "0.7512", "0.75", "▁█"],
        ["auc", "0.5"],
    ]
    assert metrics_table({"samples_per_s": 3.0}, History(())) is None


def test_a_history_is_read_anew_when_it_has_grown(tmp_path: Path):
    run = RunFolder(tmp_path)
    assert history_of(run).all_rows == ()
    run.history.mkdir()
    for count in (1, 2):
        append_line(training_file(run), row(count, 0.5).model_dump_json())
        assert len(history_of(run).all_rows) == count
    assert history_of(run) is history_of(run)
