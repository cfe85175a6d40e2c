"""Steps of the main job, and datasets that are not fit for it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from headrace.checkpoints import files as checkpoints
from headrace.checkpoints.files import BestCheckpoint
from headrace.errors import (
    DataError,
    HeadraceError,
    RecipeError,
    SiteError,
    UnknownNameError,
    UserError,
)
from headrace.execution.execute import previews
from headrace.execution.step_attempts import collect
from headrace.files.atomic import write_record
from headrace.files.damage import seal
from headrace.files.layout import StepFolder
from headrace.ledger.ledger import open_ledger
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.load import load_recipe, load_site
from headrace.runs.planned_steps import roles_after, step_of, steps_of
from headrace.runs.resolve import resolve
from headrace.states import FailureClass, StepState
from headrace.steps.mailbox import StepResult
from support.attempts import start_step
from support.runs import lease_on_disk, make_run
from support.shards import write_dataset

OWN = ("dataset=null", "model=null", "evaluate=null", "train.script=mine.py")
"""Of a recipe whose script brings its own data."""
PACKED = ("~dataset.source", "~dataset.labels", "+dataset.path=/packed")
"""Of a recipe whose dataset is packed: no other lease is waited for only to look at it."""


@pytest.mark.parametrize(
    ("kind", "overrides", "steps"),
    [
        ("train", (), [("pack", "cpu"), ("stage", "gpu"), ("train", "gpu"), ("evaluate", "gpu")]),
        ("train", ("evaluate=null",), [("pack", "cpu"), ("stage", "gpu"), ("train", "gpu")]),
        ("train", ("pack_role=gpu", "evaluate=null"), [("pack", "gpu"), ("stage", "gpu"),
                                                       ("train", "gpu")]),
        ("train", PACKED, [("pack", "gpu"), ("stage", "gpu"), ("train", "gpu"),
                           ("evaluate", "gpu")]),
        ("suite", PACKED, [("pack", "gpu"), ("suite", "gpu")]),
        ("pack", (), [("pack", "cpu")]),
        ("train", OWN, [("train", "gpu")]),
        ("suite", OWN, [("suite", "gpu")]),
    ],
)  # fmt: skip
def test_steps_and_roles(kind, overrides, steps):
    planned = steps_of(load_recipe("digits", overrides), kind)
    assert [(step.name, step.role) for step in planned] == steps


@pytest.mark.parametrize(
    ("step", "overrides", "roles"),
    [("pack", (), ("gpu",)), ("pack", ("pack_role=gpu",), ()), ("stage", (), ())],
)
def test_roles_of_later_steps_are_told_but_for_that_of_the_step(step, overrides, roles):
    recipe = load_recipe("digits", overrides)
    assert roles_after(recipe, "train", step_of(recipe, "train", step)) == roles


def test_what_is_packed_needs_no_role_that_packs(headrace_home):
    site = load_site("laptop")
    roles = {"gpu": site.roles["gpu"]}
    site = site.model_copy(update={"roles": roles, "allowed_sources": ("/",)})
    recipe = load_recipe("digits", PACKED)
    kept, _ = resolve(recipe, site, "train", is_from_terminal=True)
    assert kept.dataset_path == "/packed"
    with pytest.raises(SiteError, match=r"asks by train\.role for the role 'b'"):
        resolve(
            load_recipe("digits", (*PACKED, "train.role=b")), site, "suite", is_from_terminal=True
        )


@pytest.mark.parametrize("kind", ["pack", "train"])
def test_a_recipe_without_a_dataset_needs_no_role_that_packs(kind, headrace_home):
    site = load_site("laptop")
    roles = {"gpu": site.roles["gpu"]}
    site = site.model_copy(update={"roles": roles, "allowed_code": ("/",)})
    recipe = load_recipe("digits", (*OWN, "pack_role=none", f"train.script={__file__}"))
    if kind == "pack":
        with pytest.raises(RecipeError, match=r"Recipe 'digits' has no 'dataset'.*\n.*Name one"):
            resolve(recipe, site, kind, is_from_terminal=True)
    else:
        kept, _ = resolve(recipe, site, kind, is_from_terminal=True)
        assert kept.dataset is None
        assert kept.train.script == __file__


def test_inputs_come_from_the_outputs_of_earlier_steps():
    evaluate = step_of(load_recipe("digits"), "train", "evaluate")
    outputs = {"pack": {"dataset": "/d", "num_samples": 3}, "train": {"checkpoint": "/c"}}
    assert evaluate.inputs(outputs) == {"dataset": "/d", "checkpoint": "/c"}
    evaluate = step_of(load_recipe("digits", ["trainer.monitor=val_loss"]), "train", "evaluate")
    outputs["train"] = {"checkpoint": "/c", "best_checkpoint": "/b"}
    assert evaluate.inputs(outputs)["best_checkpoint"] == "/b"


def test_a_step_whose_inputs_are_not_there_names_what_must_run_first():
    train = step_of(load_recipe("digits"), "train", "train")
    with pytest.raises(UnknownNameError, match="needs 'dataset' of 'pack', which has not succeed"):
        train.inputs({})


def test_an_unknown_step_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"no step 'trian'\n.*Did you mean 'train'"):
        step_of(load_recipe("digits"), "train", "trian")
    with pytest.raises(UnknownNameError, match=r"no step 'train'\n.*Valid: pack\."):
        step_of(load_recipe("digits"), "pack", "train")


RAW = ("dataset.source=null", "dataset.labels=auto", "data.transforms=[]")


@pytest.fixture(autouse=True)
def _where_paths_may_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dataset(folder: Path, *fields: str, **splits: int) -> Path:
    total = sum(splits.values())
    content = {"array": np.zeros((total, 4), np.float32), "label": np.zeros(total, np.int64)}
    write_dataset(folder, {name: content[name] for name in fields}, splits=splits, classes=("a",))
    return folder


def asked(folder: Path, *overrides: str) -> tuple[str, ...]:
    return (*RAW, f"dataset.path={folder}", *overrides)


CASES = [
    (("array",), {"train": 64, "test": 9}, (), DataError, "has no labels"),
    (("array", "label"), {"train": 63, "test": 9}, (), UserError, "has 63 samples, too few"),
    (
        ("array", "label"),
        {"train": 1, "test": 9},
        ("data.drop_last=false", "data.global_batch_size=2"),
        UserError,
        "has 1 samples",
    ),
    (("array", "label"), {"train": 64, "val": 1, "test": 9}, (), UserError, "fewer than 2 ranks"),
    (("array", "label"), {"train": 64, "val": 9}, (), HeadraceError, "'test'"),
    (
        ("array", "label"),
        {"train": 64, "test": 9},
        ("evaluate.checkpoint=16",),
        RecipeError,
        "is 16, but training has 15 optimizer steps",
    ),
]


@pytest.mark.parametrize(("fields", "splits", "overrides", "error", "words"), CASES)
def test_a_packed_dataset_is_looked_at_by_plan_and_run(
    tmp_path: Path, fields, splits, overrides, error, words
) -> None:
    """Pains 29: before anything is submitted."""
    folder = dataset(tmp_path / "d", *fields, **splits)
    recipe = load_recipe("digits", asked(folder, *overrides))
    with pytest.raises(error, match=words):
        previews(recipe, load_site("laptop"))
    with pytest.raises(error, match=words):
        make_run(overrides=asked(folder, *overrides))
    assert open_ledger().runs() == ()


@pytest.mark.parametrize("overrides", [(), ("evaluate=null",)])
def test_what_fits_is_planned(tmp_path: Path, overrides) -> None:
    fields = ("array",) if overrides else ("array", "label")
    folder = dataset(tmp_path / "d", *fields, train=64, test=9)
    assert previews(load_recipe("digits", asked(folder, *overrides)), load_site("laptop"))


def test_a_dataset_that_is_not_seen_from_here_is_left_to_the_nodes(tmp_path: Path) -> None:
    for place in (tmp_path / "on-the-nodes", "s3://bucket/d"):
        assert previews(load_recipe("digits", asked(place)), load_site("laptop"))


@pytest.mark.parametrize("kind", ["train", "pack"])
def test_packing_fails_where_its_dataset_is_of_no_use_to_the_run(tmp_path: Path, kind) -> None:
    """The dataset stays: a run of another recipe, or one that only packs, can use it."""
    run = make_run(kind=kind, overrides=("data.transforms=[]",))
    lease_on_disk(run, host=ProcessIdentity.of())
    ticket = start_step(run, "pack")
    folder = dataset(tmp_path / "d", "array", train=64, test=9)
    done = StepResult(
        state=StepState.SUCCEEDED, outputs={"dataset": str(folder)}, started_at=1, finished_at=2
    )
    write_record(StepFolder(Path(ticket.folder.path)).result, done)
    result = collect(run, ticket)
    (row,) = open_ledger().attempts(run.run_id)
    assert row.state is result.state
    assert json.loads((folder / "manifest.json").read_text())
    if kind == "pack":
        assert result == done
        return
    assert (row.state, row.failure_class) == (StepState.FAILED, FailureClass.DATA_ERROR)
    assert row.message.startswith(f"{folder} is packed, but the run cannot use it: Dataset ")
    assert "set `evaluate: null`" in row.message
    assert row.outputs["dataset"] == str(folder)


@pytest.mark.parametrize("key", ["dataset.source", "dataset.path", "pack.target"])
def test_an_object_store_without_its_package_is_told_by_plan_and_run(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Not by the pack step, once machines were waited for."""
    monkeypatch.setattr("headrace.objects.store.find_spec", lambda _: None)
    raw = RAW if key == "dataset.path" else ()
    overrides = (*raw, f"{key}=gs://bucket/there")
    words = r"(?s)'gs://bucket/there' needs the package gcsfs.*pip install 'headrace\[gs\]'"
    with pytest.raises(UserError, match=words):
        previews(load_recipe("digits", overrides), load_site("laptop"))
    with pytest.raises(UserError, match=words):
        make_run(overrides=overrides)


MISSING = r"(?s)The source folder .*nowhere does not exist.*Set dataset\.source"


@pytest.mark.parametrize("kind", ["train", "pack"])
def test_a_missing_source_is_told_by_plan_and_run(tmp_path: Path, kind) -> None:
    overrides = (f"dataset.source={tmp_path / 'nowhere'}",)
    with pytest.raises(RecipeError, match=MISSING):
        previews(load_recipe("digits", overrides), load_site("laptop"))
    with pytest.raises(RecipeError, match=MISSING):
        make_run(kind=kind, overrides=overrides)
    assert open_ledger().runs() == ()


def test_a_source_that_only_nodes_may_see_is_left_to_them(tmp_path: Path) -> None:
    """All nodes see the site's folder under its path; of other folders only they know."""
    laptop = load_site("laptop")
    role = laptop.roles["cpu"].model_copy(update={"backend": "slurm"})
    site = laptop.model_copy(update={"roles": {**laptop.roles, "cpu": role}})
    elsewhere = load_recipe("digits", [f"dataset.source={tmp_path / 'nowhere'}"])
    assert resolve(elsewhere, site, "pack", is_from_terminal=True)
    shared = load_recipe("digits", [f"dataset.source={Path(site.folder) / 'nowhere'}"])
    with pytest.raises(RecipeError, match=MISSING):
        resolve(shared, site, "pack", is_from_terminal=True)


def test_weights_to_begin_with_that_are_missing_are_told_before_anything_starts(
    tmp_path: Path,
) -> None:
    laptop, wanted = load_site("laptop"), f"train.init_from={tmp_path / 'a.ckpt'}"
    source = f"dataset.source={tmp_path}"
    with pytest.raises(RecipeError, match="which is not a file"):
        resolve(load_recipe("digits", [wanted, source]), laptop, "train", is_from_terminal=True)
    (tmp_path / "a.ckpt").mkdir()
    with pytest.raises(RecipeError, match="which is not a file"):
        resolve(load_recipe("digits", [wanted, source]), laptop, "train", is_from_terminal=True)
    seal(tmp_path / "a.ckpt", {})
    assert resolve(load_recipe("digits", [wanted, source]), laptop, "train", is_from_terminal=True)
    checkpoints.remove(tmp_path / "a.ckpt")
    (tmp_path / "a.ckpt").touch()
    assert resolve(load_recipe("digits", [wanted, source]), laptop, "train", is_from_terminal=True)


def test_a_step_is_evaluated_that_only_max_steps_says_there_will_be(tmp_path: Path) -> None:
    """Of a model that steps twice a batch nothing else tells."""
    folder = dataset(tmp_path / "d", "array", "label", train=64, test=9)
    wanted = ("evaluate.checkpoint=30", "trainer.max_steps=30")
    assert previews(load_recipe("digits", asked(folder, *wanted)), load_site("laptop"))


def test_checkpoints_to_evaluate_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    whole = tmp_path / "whole.ckpt"
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("weights", bytes(1000))
    content = bytearray(whole.read_bytes())
    content[500] ^= 1
    (tmp_path / "flipped.ckpt").write_bytes(content)
    source = f"dataset.source={tmp_path}"

    def looked_at(name: str) -> tuple[int | str, ...]:
        recipe = load_recipe("digits", [source, f"evaluate.also_checkpoints=[./{name}.ckpt]"])
        kept, _ = resolve(recipe, load_site("laptop"), "train", is_from_terminal=True)
        return kept.evaluate.checkpoints

    assert looked_at("whole") == ("last", str(whole))
    with pytest.raises(RecipeError, match=r"gone\.ckpt: the file does not exist"):
        looked_at("gone")
    with pytest.raises(RecipeError, match=r"flipped\.ckpt: checksum of weights is wrong"):
        looked_at("flipped")


def test_a_run_stands_for_its_best_or_last_checkpoint_or_the_one_of_a_step(tmp_path: Path) -> None:
    run, source = make_run(), f"dataset.source={tmp_path}"
    folder = run.folder.checkpoints
    folder.mkdir()

    def begins_with(wanted: str) -> str | None:
        recipe = load_recipe("digits", [f"train.init_from={wanted}", source])
        kept, _ = resolve(recipe, load_site("laptop"), "train", is_from_terminal=True)
        return kept.train.init_from

    with pytest.raises(UnknownNameError, match="has no checkpoint 'last'"):
        begins_with(run.run_id)
    for name in ("step-000000007.ckpt", "best-000000005.ckpt", "final.ckpt"):
        (folder / name).touch()
    assert begins_with(run.run_id) == str(folder / "final.ckpt")
    best = BestCheckpoint(file="best-000000005.ckpt", metric="loss", value=0.1, epoch=0, step=5)
    write_record(folder / checkpoints.BEST, best)
    for wanted in (run.run_id, f"{run.run_id}:best"):
        assert begins_with(wanted) == str(folder / best.file)
    assert begins_with(f"{run.run_id}:last") == str(folder / "final.ckpt")
    assert begins_with(f"{run.run_id}:7") == str(folder / "step-000000007.ckpt")
    (folder / "kept-000000009.ckpt").touch()
    assert begins_with(f"{run.run_id}:9") == str(folder / "kept-000000009.ckpt")
    with pytest.raises(
        UnknownNameError, match=r"There are: best-000000005\.ckpt, final\.ckpt, kept"
    ):
        begins_with(f"{run.run_id}:8")
    with pytest.raises(UnknownNameError, match="no-such-run"):
        begins_with("no-such-run")
