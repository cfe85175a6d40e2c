"""Models of trials at other sites of a suite: evaluated, and begun with, where their files are."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from headrace.cli import runs
from headrace.errors import SiteError
from headrace.execution.execute import steps_of
from headrace.execution.step_attempts import _inputs
from headrace.files.atomic import write_record
from headrace.multi_site.parts import make_part
from headrace.recipe.load import load_recipe
from headrace.runs.names import named
from headrace.runs.runs import Run
from headrace.training.launch_records import TrainingOutcome
from headrace.training.train_step import completed
from headrace.training.training_plan import training_fingerprint
from support.command_line import headrace
from support.factories import write_site
from support.many_sites import packed_suite
from support.past_runs import step_ended
from support.runs import lease_on_disk, make_run
from support.shards import write_dataset
from support.suite_journal import added, ended, journal, started
from support.training import make_context, make_recipe, make_site


@pytest.fixture(autouse=True)
def _home(headrace_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    write_site(
        headrace_home, "queue", folder=str(headrace_home / "queue"),
        roles={"gpu": {"backend": "slurm", "lifetime": 600}},
    )  # fmt: skip


@pytest.fixture
def part(headrace_home: Path) -> Run:
    """The part of a suite where trial 1 has ended, with its copy of the dataset."""
    suite = packed_suite(headrace_home)
    part = make_part(suite, "box")
    fields = {"image": np.zeros((20, 8, 8), np.uint8), "label": np.arange(20) % 10}
    classes = tuple(str(number) for number in range(10))
    copy = headrace_home / "box" / "d"
    write_dataset(copy, fields, splits={"train": 12, "test": 8}, classes=classes)
    step_ended(part, "pack", lease_on_disk(part), 1.0, outputs={"dataset": str(copy)}, number=1)
    trial = part.folder.trial(1)
    trial.checkpoints.mkdir(parents=True)
    write_record(trial.recipe, load_recipe("digits"))
    with ZipFile(trial.checkpoints / "final.ckpt", "w") as checkpoint:
        checkpoint.writestr("data", "x")
    suite.folder.trials.mkdir()
    suite.folder.trial(1).path.symlink_to(trial.path)
    journal(suite.folder, added(1, seed=1), started(1, site="box"), ended(1, 0.5, site="box"))
    return part


def test_a_trial_is_evaluated_at_the_site_where_it_ran(
    part: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Run] = []
    monkeypatch.setattr(runs, "carry_out", lambda job, *_, **__: done.append(job))
    suite_id = part.run_id.removesuffix("-at-box")
    shown = headrace("evaluate", f"{suite_id}:1")
    assert shown.exit_code == 0, shown.output
    (run,) = done
    assert (run.site.name, run.request.of) == ("box", f"{suite_id}:1")
    assert run.recipe.evaluate is not None
    found = part.folder.trial(1).checkpoints / "final.ckpt"
    assert run.recipe.evaluate.checkpoints == (str(found),)
    (step,) = steps_of(run.recipe, "evaluate")
    assert _inputs(run, step) == {"dataset": str(part.site_folder.path / "d")}


def test_a_trial_that_nodes_of_another_site_may_not_see_is_refused_at_once(part: Run) -> None:
    name = named(part.run_id.removesuffix("-at-box") + ":1").name
    recipe = str(part.folder.trial(1).recipe)
    for request in (
        {"recipe": recipe, "kind": "evaluate", "of": name},
        {"overrides": (f"train.init_from={name}",)},
    ):
        with pytest.raises(SiteError) as error:
            make_run(site="queue", **request)
        assert f"Trial {name} ran at site 'box'" in error.value.what
        assert "Name site box." in error.value.hint
    run = make_run(site="lab", overrides=(f"train.init_from={name}",))  # nodes are this machine
    assert run.recipe.train.init_from == str(part.folder.trial(1).checkpoints / "final.ckpt")


def test_a_completed_training_that_was_moved_names_its_own_checkpoints(tmp_path: Path) -> None:
    """And so keeps the hash of its weights, also once the folder that it left is gone."""
    recipe = make_recipe({"dataset": None, "model": {"_target_": "torch.nn.Identity"}})
    context = make_context(tmp_path, recipe, make_site(tmp_path))
    fields = {"image": np.zeros((20, 8, 8), np.uint8), "label": np.arange(20) % 10}
    manifest = write_dataset(tmp_path / "d", fields, splits={"train": 12, "test": 8})
    folder = context.run_folder.checkpoints
    outcome = TrainingOutcome(
        fingerprint=training_fingerprint(recipe, manifest), epochs=1, steps=5, world_size=1,
        checkpoint="/left/checkpoints/final.ckpt", weights_xxh3="ab",
        best_checkpoint="/left/checkpoints/best-000000003.ckpt",
    )  # fmt: skip
    write_record(folder / "final.json", outcome)
    assert completed(context, manifest) is None
    (folder / "final.ckpt").touch()
    found = completed(context, manifest)
    assert found is not None
    assert found.checkpoint == str(folder / "final.ckpt")
    assert found.best_checkpoint == str(folder / "best-000000003.ckpt")
    assert found.weights_xxh3 == "ab"
