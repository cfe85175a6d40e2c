"""What runs look like in the terminal, failed ones above all."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from headrace.cli.console import amount, duration
from headrace.cli.view import closing, live, print_failures, remarks
from headrace.cli.words import result_line
from headrace.states import FailureClass, StepState
from headrace.status.run_details import RunDetails
from headrace.status.step import StepView
from headrace.steps.history import NodeLoad, NodeRow, RankRow
from headrace.steps.mailbox import Progress, StepStatus

TRACE = 'Traceback (most recent call last):\n  File "model.py", line 7\nValueError: [/bad] [red]\n'

FAILED = StepView(
    name="train",
    state=StepState.FAILED,
    attempt=1,
    elapsed_s=4.0,
    message="Rank 1: training_step raised ValueError: [/bad] [red]\n  Correct the code.",
    failure_class=FailureClass.USER_ERROR,
    trace=TRACE,
    folder="/leases/x/steps/000001",
)


def view(
    *steps: StepView, state: StepState = StepState.FAILED, owner: str = "cli:h:1:2"
) -> RunDetails:
    return RunDetails(
        run_id="digits-1", recipe="digits", site="laptop", state=state, owner=owner,
        elapsed_s=75.0, created_at=1.0, folder="/runs/[digits-1]", steps=steps,
        asked=() if owner.startswith("airflow") else ("run", "my recipe.yaml", "--site", "laptop"),
    )  # fmt: skip


def printed(function, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    function(console)
    return console.file.getvalue()


def test_of_a_suite_counts_and_the_best_trial_are_told():
    outputs = {"counts": {"succeeded": 3, "failed": 1}, "best": 7, "best_value": 0.25}
    done = StepView(name="suite", state=StepState.SUCCEEDED, outputs=outputs)
    assert result_line(done) == "3 succeeded, 1 failed, best is trial 7: 0.25"


def test_a_failure_is_told_once_with_class_trace_logs_and_the_way_on():
    text = printed(lambda console: print_failures(view(FAILED), console))
    assert text.startswith("train failed (user_error): Rank 1: training_step raised ValueError: ")
    assert text.count("Traceback") == 1
    assert text.count("Correct the code.") == 1
    assert "headrace logs digits-1 train" in text
    told = text.splitlines()
    assert told[-2] == (
        "  after a correction of recipe or site: headrace run 'my recipe.yaml' --site laptop"
    )
    assert told[-1] == (
        "  after any other correction, with the recipe of this run: headrace resume digits-1"
    )
    packed = StepView(name="pack", state=StepState.SUCCEEDED)
    text = printed(lambda console: print_failures(view(packed, FAILED), console))
    assert "--site laptop (the packed dataset is used again)\n" in text
    assert "headrace evaluate" not in text
    trained = StepView(name="train", state=StepState.SUCCEEDED)
    evaluated = FAILED.model_copy(update={"name": "evaluate"})
    text = printed(lambda console: print_failures(view(packed, trained, evaluated), console))
    way = "headrace evaluate digits-1 evaluate.KEY=VALUE (nothing is trained again)\n"
    assert f"  after a correction of the recipe's evaluate: {way}" in text


def test_each_evaluated_checkpoint_and_split_has_a_line():
    def outputs(split: str, file: str, accuracy: float) -> dict[str, object]:
        metrics = {"accuracy": accuracy, "f1": 0.5, "recall": 0.25, "auroc": 0.1}
        return {"split": split, "evaluated": f"/c/{file}.ckpt", "metrics": metrics}

    first = outputs("test", "final", 0.9)
    step = StepView(name="evaluate", state=StepState.SUCCEEDED, outputs=first)
    assert result_line(step) == "accuracy 0.9000, f1 0.5000, recall 0.2500"
    also = [outputs("val", "kept-000000007", 0.8)]
    step = step.model_copy(update={"outputs": {**first, "also": also}})
    assert result_line(step).splitlines() == [
        "test, final: accuracy 0.9000, f1 0.5000, recall 0.2500",
        "val, kept-000000007: accuracy 0.8000, f1 0.5000, recall 0.2500",
    ]


def test_after_a_fault_of_the_machine_only_going_on_helps():
    lost = FAILED.model_copy(update={"failure_class": FailureClass.LOST})
    text = printed(lambda console: print_failures(view(lost), console))
    assert text.rstrip().endswith("headrace resume digits-1")


def test_what_users_write_is_no_markup():
    """A message with square brackets is neither eaten nor taken for a style."""
    text = printed(lambda console: print_failures(view(FAILED), console))
    text += printed(lambda console: console.print(closing(view(FAILED))))
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
    step = FAILED.model_copy(update={"message": message, "trace": trace})
    text = printed(lambda console: print_failures(view(step), console))
    text += printed(lambda console: console.print(closing(view(step))))
    assert text.count("sizes differ") == 1
    assert '  File "model.py", line 7\n  logs: ' in text


def test_a_trace_that_says_more_than_the_message_is_shown_whole():
    step = FAILED.model_copy(update={"message": "The driver ended.", "trace": TRACE})
    assert TRACE in printed(lambda console: print_failures(view(step), console))


def test_messages_and_paths_are_not_broken_into_lines():
    long = FAILED.model_copy(update={"message": "The folder " + "/very/long" * 30, "trace": ""})
    text = printed(lambda console: print_failures(view(long), console), width=40)
    assert "/very/long" * 30 in text


def test_a_run_of_airflow_is_not_resumed_from_the_terminal():
    text = printed(lambda c: print_failures(view(FAILED, owner="airflow:headrace_train:1"), c))
    assert "resume" not in text


def test_a_run_that_succeeded_has_no_failures():
    done = StepView(name="pack", state=StepState.SUCCEEDED, attempt=2, outputs={"num_samples": 5})
    ok = view(done, state=StepState.SUCCEEDED)
    assert printed(lambda console: print_failures(ok, console)) == ""
    assert "5 samples" in printed(lambda console: console.print(closing(ok)))


def test_the_closing_tells_which_run_it_is_and_what_is_in_quarantine():
    outputs = {"num_samples": 39, "num_quarantined": 1, "reused": True}
    packed = StepView(name="pack", state=StepState.SUCCEEDED, attempt=1, outputs=outputs)
    text = printed(lambda console: console.print(closing(view(packed, state=StepState.SUCCEEDED))))
    assert text.startswith("digits-1 · digits on laptop · succeeded · 1:15\n")
    assert "39 samples, 1 more in quarantine (headrace inspect shows why), reused" in text


def test_nodes_that_a_run_does_without_are_told():
    run = view(state=StepState.RUNNING, owner="airflow:x").model_copy(update={"without": ("n7",)})
    (remark,) = remarks(run)
    assert remark.startswith("Avoids n7: jobs failed there")
    named = run.model_copy(update={"without": (), "suspects": ("n7",)})
    (remark,) = remarks(named)
    assert remark.startswith("Its jobs failed on n7, and the batch system cannot exclude nodes")


def test_a_running_training_shows_the_newest_and_the_best_metric():
    metrics = {"val/acc": 0.91234, "best val/acc": 0.95, "loss": 0.1, "samples_per_s": 3.0}
    status = StepStatus(state=StepState.RUNNING, metrics=metrics)
    running = StepView(name="train", state=StepState.RUNNING, status=status)
    text = printed(lambda console: console.print(live(view(running, state=StepState.RUNNING))))
    assert re.search(r"loss +0.1 *\n", text)
    assert re.search(r"val/acc +0.9123 +0.95 *\n", text)
    ended = running.model_copy(update={"state": StepState.FAILED})
    assert "val/acc" not in printed(lambda console: console.print(live(view(ended))))


def test_how_busy_nodes_and_ranks_are_is_told_while_they_train():
    node = NodeRow(at=1.0, node="n0", cpu=0.75, memory=0.5, gpu=0.25, network_in_bytes_per_s=2e6)
    ranks = tuple(
        RankRow(at=1.0, rank=rank, node="n0", cores=rank, rss_bytes=rank * 10**9)
        for rank in (1, 3, 2)
    )
    use = NodeLoad(nodes=(node,) * 5, ranks=ranks)
    run = view(state=StepState.RUNNING).model_copy(update={"use": use})
    text = printed(lambda console: console.print(live(run)))
    assert text.count("n0: CPU 75%, GPUs 25%, memory 50%, network in 2MB/s\n") == 4
    assert "… and 1 more nodes: headrace status --json" in text
    assert "ranks: 2 cores each, the most memory has rank 3: 3GB" in text


def test_the_live_table_shows_progress_rate_and_time_left():
    status = StepStatus(
        state=StepState.RUNNING,
        progress=Progress(done=30, total=120, unit="steps", phase="epoch 1/4 [x]"),
        rate=2.5,
        eta_s=36.0,
    )
    running = StepView(
        name="train", state=StepState.RUNNING, attempt=2, status=status, elapsed_s=12.0
    )
    waiting = StepView(name="evaluate", state=None)
    text = printed(
        lambda console: console.print(live(view(running, waiting, state=StepState.RUNNING))),
        width=160,
    )
    for part in ("running (2)", "epoch 1/4 [x] · 2.5 steps/s · 25 % · 36 s left", "12.0 s"):
        assert part in text
    assert "waiting" in text


def test_nothing_of_a_run_is_cut_at_80_columns():
    name, metric = "resnet-50-imagenet-20260102-030405-0a1b2c3d", "val/" + "balanced_" * 4
    progress = Progress(done=30, total=12_000, unit="steps", phase="epoch 1/4, validation")
    metrics = {metric: 0.5, f"best {metric}": 0.25}
    status = StepStatus(
        state=StepState.RUNNING, progress=progress, rate=1234.5, eta_s=360_000.0, metrics=metrics
    )
    steps = StepView(name="train", state=StepState.RUNNING, attempt=12, status=status)
    known = {"run_id": name, "recipe": name, "dashboard_url": f"http://{name}:8787/status"}
    run = view(steps, StepView(name="evaluate", state=None), state=StepState.RUNNING)
    text = printed(lambda console: console.print(live(run.model_copy(update=known))), width=80)
    shown = re.sub(r"\s", "", text)
    assert "…" not in text
    for whole in (name, f"{name}onlaptop", metric, "1.23e+03steps/s", "100.0hleft", "running(12)"):
        assert whole in shown, whole
    assert f"Daskdashboardhttp://{name}:8787/status" in shown


def test_a_stage_tells_how_much_came_how_fast_and_from_where_the_rest_is_read():
    node = {"tier": "shm"}
    outputs = {"num_bytes": 4e9, "copied_bytes": 8e9, "bytes_per_s": 3.2e9, "nodes": [node, node]}
    done = StepView(name="stage", state=StepState.SUCCEEDED, outputs=outputs)
    assert result_line(done) == "4GB, on 2 nodes, on shm, 3.2GB/s"
    reused = {**outputs, "copied_bytes": 0, "nodes": [node], "left_out_bytes": 5e8}
    done = StepView(name="stage", state=StepState.SUCCEEDED, outputs=reused)
    assert result_line(done) == "4GB, on shm, reused, 500MB left at the source"


def test_a_pack_tells_why_it_does_not_add_to_a_dataset():
    outputs = {"num_samples": 40, "passed_over": ["/data/d/manifest.json is damaged\n  Restore it"]}
    told = result_line(StepView(name="pack", state=StepState.SUCCEEDED, outputs=outputs))
    assert told == (
        "40 samples, a new dataset, although pack.append is set: /data/d/manifest.json is damaged\n"
        "  Restore it"
    )


def test_a_training_tells_what_it_did_without_and_what_it_fetched():
    outputs = {"steps": 1200, "metrics": {}}
    done = StepView(name="train", state=StepState.SUCCEEDED, outputs=outputs)
    assert result_line(done) == "1200 steps"
    streamed = {"node-0": {"peer_bytes": 2e9, "source_bytes": 0},
                "node-1": {"peer_bytes": 3e9, "source_bytes": 4e8}}  # fmt: skip
    outputs |= {"skipped_samples": 7, "skipped_shards": ["a", "b"], "streamed": streamed}
    outputs |= {"problem": "checkpoints are not copied to /full: no space"}
    done = StepView(name="train", state=StepState.SUCCEEDED, outputs=outputs)
    assert result_line(done) == (
        "1200 steps, without 7 samples of 2 damaged shards, 5GB from other nodes, "
        "400MB from the source, checkpoints are not copied to /full: no space"
    )


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, ""), (0, "0.0 s"), (59.94, "59.9 s"), (59.96, "1:00"), (3661, "1:01:01")],
)
def test_durations(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0, "0"), (0.1234, "0.123"), (950, "950"), (1797, "1797"), (12_345, "12.3k"),
     (999_999, "1M"), (3.2e9, "3.2G")],
)  # fmt: skip
def test_amounts(value, shown):
    assert amount(value) == shown


def test_restarts_within_an_attempt_are_told_with_their_cause():
    """While it runs, and when it has ended well: the number of attempts does not show them."""
    causes = ("Rank 0 on node-0: ended by signal SIGKILL", "Rank 1: ended by signal SIGBUS\n  x")
    status = StepStatus(state=StepState.RUNNING, restarts=causes)
    running = StepView(
        name="train", state=StepState.RUNNING, attempt=1, status=status, restarts=causes
    )
    (remark,) = remarks(view(running, state=StepState.RUNNING))
    assert remark == "train: restarted 2 times, the last: Rank 1: ended by signal SIGBUS"
    ended = StepView(
        name="train",
        state=StepState.SUCCEEDED,
        attempt=1,
        outputs={"steps": 40, "restarts": 1, "restart_causes": [causes[0]]},
    )
    told = result_line(ended)
    assert told == "40 steps, restarted once: Rank 0 on node-0: ended by signal SIGKILL"


def test_of_a_step_that_fails_again_and_again_the_number_and_the_last_error_are_told():
    step = StepView(
        name="train", state=StepState.RUNNING, attempt=3, failures=2, last_failure="no such file"
    )
    told = list(remarks(view(step, state=StepState.RUNNING)))
    assert told == ["train: failed 2 times without progress, the last: no such file"]
    once = step.model_copy(update={"failures": 1})
    assert "failed once without" in next(remarks(view(once, state=StepState.RUNNING)))
    assert list(remarks(view(step))) == []
