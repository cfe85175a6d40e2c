"""What each door may name: a terminal all that its account may use, every other door lists."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import yaml

from headrace.data.instantiate import Allowed, instantiate
from headrace.errors import RecipeError, SiteError, TargetError
from headrace.execution.resume import take_over_changed
from headrace.ledger.ledger import open_ledger
from headrace.recipe.batch import Batch
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.site import Role
from headrace.runs.audit import AIRFLOW, Actor
from headrace.runs.code_snapshot import allowing_copy
from headrace.runs.lifecycle import finish_run
from headrace.runs.resolve import resolve
from headrace.runs.runs import Run, open_run
from headrace.runs.suites import ask_for_more, further_points
from headrace.states import StepState
from support.ledger_rows import trial_row
from support.runs import ended_owner, make_run

DAG_RUN = "airflow:headrace_suite:manual"
CSV = "lightning.pytorch.loggers.CSVLogger"
STOP = "lightning.pytorch.callbacks.ModelCheckpoint"
CALLBACK = "trainer.callbacks=[{{_target_: {}, dirpath: {}}}]"

MINE = """
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self, note="", lr=0.1, **kwargs): super().__init__()
    @classmethod
    def made(cls, **kwargs): return cls()
    def forward(self, x): ...
    def training_step(self, batch, index): ...
    def validation_step(self, batch, index): ...
    def predict_step(self, batch, index): ...
    def configure_optimizers(self): ...

def value(x, notes=""): return x
"""

OWN = "model._target_=mine.Model"
_RAW = ("source", "labels", "splits")
PLACES = {
    "source": ["dataset.source=AT/raw"],
    "packed dataset": [*(f"~dataset.{key}" for key in _RAW), "dataset.path=AT/packed"],
    "link out of the project": ["dataset.source=AT/here/link"],
    "target of packing": ["pack.target=AT/out"],
    "copies of checkpoints": ["trainer.checkpoint_target=AT/out"],
    "weights": ["train.init_from=AT/weights.ckpt"],
    "evaluated checkpoint": ["evaluate.checkpoint=AT/weights.ckpt"],
    "folder of code": ["code=[AT/code]"],
    "argument of the model": ["model.note=AT/x"],
    "address in an argument": ["model.note=/v1/chat"],
    "argument of a callback": [CALLBACK.format(STOP, "AT/out")],
    "folder of a logger": [f"trainer.loggers=[{{_target_: {CSV}, save_dir: AT/out}}]"],
    "variable in a logger": [f"trainer.loggers=[{{_target_: {CSV}, save_dir: $HOME/x}}]"],
    "argument of the Trainer": ["trainer.extra.default_root_dir=AT/out"],
    "object store": ["dataset.source=s3://bucket/raw"],
    "module in the working folder": ["model._target_=beside.Model"],
    "class method": [OWN + ".made"],
    "package": ["model.note={_target_: json.JSONDecoder}"],
    "function of a framework": ["model.note={_target_: torch.nn.functional.relu, _partial_: true}"],
    "module of Lightning": ["model.note={_target_: lightning.pytorch.demos.boring_classes.Net}"],
    "command": ["model.note={_target_: os.system, command: 'true'}"],
}
SCRIPT = ["model=null", "evaluate=null", "data.transforms=[]"]
PLACES |= {
    "script": [*SCRIPT, "train.script=AT/x.py"],
    "argument of a script": [*SCRIPT, "train.script=AT/listed/x.py", "train.args=[--to=AT/out]"],
    "function": [*SCRIPT, "train.function={_target_: json.loads, s: '1'}", "dataset=null"],
}


FENCE = "does not let recipes go|does not allow|, no path|is an attribute"


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headrace_home: Path) -> Path:
    """Folders that the site does not list, and `listed`, the only code that it lists."""
    for name in ("raw/a", "packed", "out", "code", "listed", "here", "recipes"):
        (tmp_path / name).mkdir(mode=0o755, parents=True)
    for name in ("listed/mine.py", "code/mine.py", "here/beside.py", "recipes/near.py"):
        (tmp_path / name).write_text(MINE)
        (tmp_path / name).chmod(0o644)
    for name in ("x.py", "listed/x.py"):
        (tmp_path / name).touch()
    torch.save({}, tmp_path / "weights.ckpt")
    (tmp_path / "here" / "link").symlink_to(tmp_path / "raw")
    content = {
        "folder": f"{tmp_path}/{{user}}",
        "roles": {"cpu": {}, "gpu": {"kind": "gang", "ranks_per_node": 2}},
        "tiers": [{"name": "disk", "folder": str(tmp_path / "tier")}],
        "allowed_code": [str(tmp_path / "listed")],
        "allowed_sources": [str(headrace_home / "examples")],
    }
    write_site(tmp_path, content)
    (headrace_home / "examples" / "digits" / "0").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HEADRACE_RECIPES_PATH", str(tmp_path / "recipes"))
    return tmp_path


def write_site(at: Path, content: dict[str, object], **changes: object) -> None:
    (at / "fenced.yaml").write_text(yaml.safe_dump({**content, **changes}))


def asked(at: Path, words: list[str]) -> tuple[str, ...]:
    """Overrides of the digits that bring a model, or a script."""
    own = [] if words[:1] == SCRIPT[:1] else [OWN, "~model.learning_rate"]
    return tuple(each.replace("AT", str(at)) for each in ("code=[AT/listed]", *own, *words))


def run_of(at: Path, words: list[str], **request: str) -> Run:
    return make_run(site=f"{at}/fenced.yaml", overrides=asked(at, words), **request)


@pytest.mark.parametrize("words", PLACES.values(), ids=PLACES)
def test_from_a_terminal_all_that_the_account_may_use_is_allowed(at: Path, words: list[str]):
    assert not run_of(at, words).site.is_fenced


@pytest.mark.parametrize("words", PLACES.values(), ids=PLACES)
def test_from_airflow_only_what_the_site_lists_is_allowed(at: Path, words: list[str]):
    assert run_of(at, [], owner=DAG_RUN, user="eve").site.is_fenced
    with pytest.raises((RecipeError, TargetError), match=FENCE):
        run_of(at, words, owner=DAG_RUN, user="eve")
    assert len(open_ledger().runs()) == 1


@pytest.mark.parametrize("words", PLACES.values(), ids=PLACES)
def test_from_a_terminal_whose_jobs_run_as_another_account_it_is_as_from_airflow(
    at: Path, words: list[str]
):
    site = load_site(f"{at}/fenced.yaml")
    batch = Batch(submit_as="ada")
    gpu = Role(backend="slurm", kind="gang", ranks_per_node=2).model_copy(update={"batch": batch})
    site = site.model_copy(update={"roles": {**site.roles, "gpu": gpu}})
    recipe = load_recipe("digits", asked(at, words))
    with pytest.raises((RecipeError, TargetError), match=FENCE):
        resolve(recipe, site, "train", is_from_terminal=True)


@pytest.mark.parametrize("key", ["is_fenced", "IS_FENCED"])
def test_a_sites_file_opens_no_fence(at: Path, caplog: pytest.LogCaptureFixture, key: str):
    content = yaml.safe_load((at / "fenced.yaml").read_text())
    write_site(at, content, **{key: False})
    if key != "is_fenced":
        with pytest.raises(SiteError, match="unknown key"):
            load_site(f"{at}/fenced.yaml")
        return
    with pytest.raises(TargetError, match=FENCE):
        run_of(at, PLACES["command"], owner=DAG_RUN, user="eve")
    assert any("'is_fenced' in" in each and "no effect" in each for each in caplog.messages)


def test_a_recipe_opens_no_fence(at: Path):
    with pytest.raises(RecipeError, match="unknown key"):
        run_of(at, ["+is_fenced=false"])


def test_code_beside_a_recipe_is_used_from_a_terminal_and_judged_from_airflow(at: Path):
    (at / "recipes" / "near_by.yaml").write_text(
        "dataset: {name: x, labels: folders, source: '${oc.env:HEADRACE_HOME}/examples/digits'}\n"
        "model: {_target_: near.Model}\n"
    )
    site = f"{at}/fenced.yaml"
    for recipe in ("near_by", f"{at}/recipes/near_by.yaml"):
        (code,) = make_run(recipe=recipe, site=site).recipe.code
        assert Path(code, "near.py").read_bytes() == Path(at, "recipes/near.py").read_bytes()
        with pytest.raises(TargetError, match=f"does not allow code from {at}/recipes"):
            make_run(recipe=recipe, site=site, owner=DAG_RUN, user="eve")


@pytest.mark.parametrize("changed", ["recipes", "recipes/near.py"])
def test_code_beside_a_recipe_that_others_may_change_is_not_used(
    at: Path, caplog: pytest.LogCaptureFixture, changed: str
):
    (at / "recipes" / "near_by.yaml").write_text(
        "dataset: {name: x, source: /data, labels: folders}\nmodel: {_target_: near.Model}\n"
    )
    (at / changed).chmod(0o777)
    assert load_recipe(f"{at}/recipes/near_by.yaml").code == ()
    assert f"are not used: other accounts may write to {at}/{changed} " in caplog.text


def suite_from_a_terminal(at: Path, **request: str) -> Run:
    words = [
        "model.note=a", "+model.part.size=1", "model.lr=0.1",
        'suite.grid={"model.note": ["a", "b"]}',
    ]  # fmt: skip
    return run_of(at, words, kind="suite", **request)


REFUSED = [
    "model.note=/etc/passwd",
    "model.note=c",
    "model.note=[1,c]",
    "train.init_from=/etc/passwd",
    "model._target_=os.system",
    "trainer.precision=bf16-mixed",
]


def test_on_a_page_a_suite_from_a_terminal_takes_figures_and_values_that_it_has(at: Path):
    """Its recipe passes text to any code of the account: a page is no shell."""
    record = open_ledger().run(suite_from_a_terminal(at).run_id)
    eve = Actor("eve", AIRFLOW)
    for word in REFUSED:
        for add in (further_points, ask_for_more):
            with pytest.raises(RecipeError, match="suite was started in a terminal"):
                add(record, [word], by=eve)
    assert ask_for_more(record, ["model.lr=0.2,0.3", "model.part.size=[1,2]"], by=eve) == 2
    values = {"model.note": "b", "model.lr": 9}
    open_ledger().put_trials([trial_row(run_id=record.run_id, values=values)])
    assert ask_for_more(record, ["model.note=b", "model.lr=0.4"], by=eve) == 1
    assert ask_for_more(record, ["model.note=c"]) == 1  # in a terminal


def test_a_suite_from_airflow_that_went_on_in_a_terminal_is_judged_as_before(at: Path):
    run = suite_from_a_terminal(at, owner=DAG_RUN, user="eve", key=DAG_RUN)
    eve = Actor("eve", AIRFLOW)
    for note, changes in (("c", []), ("d", ["train.nodes=1"])):
        assert ask_for_more(open_ledger().run(run.run_id), [f"model.note={note}"], by=eve) == 1
        finish_run(open_run(run.run_id), StepState.FAILED)
        take_over_changed(run.run_id, ended_owner(), changes, "")
    assert open_run(run.run_id).site.is_fenced
    with pytest.raises(RecipeError, match=FENCE):
        further_points(open_ledger().run(run.run_id), ["model.note=/etc/passwd"], eve)


def shared_by_users(at: Path, **changes: object) -> None:
    """The site with one folder for all users."""
    content = yaml.safe_load((at / "fenced.yaml").read_text())
    write_site(at, content, folder=f"{at}/all", **changes)


def test_a_run_from_airflow_stays_fenced_when_a_terminal_resumes_it_with_changes(at: Path):
    """Its recipe is still the one that Airflow's user chose: names in it are judged as before."""
    shared_by_users(at)
    name = "torch.nn.modules.module.functools.partial"
    run = run_of(at, [f"model.note={{_target_: {name}}}"], owner=DAG_RUN, user="eve", key=DAG_RUN)
    for site in ("", f"{at}/fenced.yaml"):
        finish_run(run, StepState.FAILED)
        resumed = take_over_changed(run.run_id, ended_owner(), ["train.nodes=1"], site)
        assert resumed.site.is_fenced
        with pytest.raises(TargetError, match=f"does not allow the target '{name}'"):
            instantiate(resumed.recipe.model, Allowed.of(resumed.recipe, resumed.site), "model")


def test_a_site_that_does_not_allow_the_code_of_a_run_from_airflow_cannot_resume_it(at: Path):
    shared_by_users(at)
    run = run_of(at, [], owner=DAG_RUN, user="eve", key=DAG_RUN)
    finish_run(run, StepState.FAILED)
    shared_by_users(at, allowed_code=[])
    with pytest.raises((RecipeError, TargetError), match=FENCE):
        take_over_changed(run.run_id, ended_owner(), [], f"{at}/fenced.yaml")


def test_a_copy_of_code_is_allowed_where_the_code_was(at: Path):
    """An evaluation uses the copy of the evaluated run, whoever began that one."""
    site = load_site(f"{at}/fenced.yaml")
    mine = run_of(at, PLACES["folder of code"]).folder
    with pytest.raises(TargetError, match=FENCE):
        allowing_copy(site, mine, is_from_terminal=False)
    for run, here in ((mine, True), (run_of(at, [], owner=DAG_RUN, user="eve").folder, False)):
        assert run.code.exists()
        assert str(run.code) in allowing_copy(site, run, is_from_terminal=here).allowed_code


def test_clearing_in_airflow_runs_what_the_terminal_has_made_and_nothing_else(at: Path):
    """Neither a second request by the same key nor its overrides change the run."""
    run = run_of(at, PLACES["argument of the model"], key=DAG_RUN)
    finish_run(run, StepState.FAILED)
    again = run_of(at, PLACES["command"], key=DAG_RUN, owner=DAG_RUN, user="eve")
    assert again.run_id == run.run_id
    assert again.recipe == open_run(run.run_id).recipe == run.recipe


def test_the_steps_of_a_run_from_airflow_judge_what_names_stand_for(at: Path):
    """Source does not show it: `partial` of a module that another one imports."""
    name = "torch.nn.modules.module.functools.partial"
    run = run_of(at, [f"model.note={{_target_: {name}}}"], owner=DAG_RUN, user="eve")
    with pytest.raises(TargetError, match=f"does not allow the target '{name}'"):
        instantiate(run.recipe.model, Allowed.of(run.recipe, run.site), "model")


def test_evaluating_a_run_of_a_terminal_is_judged_by_the_door_of_who_asks(at: Path):
    run = run_of(at, ["evaluate.split=val", *PLACES["argument of the model"]])
    run.folder.checkpoints.mkdir(exist_ok=True)
    torch.save({}, run.folder.checkpoints / "final.ckpt")
    request = {"recipe": str(run.folder.recipe), "site": f"{at}/fenced.yaml", "of": run.run_id}
    with pytest.raises(RecipeError, match=FENCE):
        make_run(**request, kind="evaluate", owner=DAG_RUN, user="eve")
