"""Trained weights and models as files for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule
from safetensors.torch import load_file
from torch import nn

from headrace.data.checkpoint_content import read_weights
from headrace.errors import RecipeError, UserCodeError, UserError
from headrace.files.atomic import write_record
from headrace.files.layout import RunFolder, SiteFolder
from headrace.training.export import export_weights
from headrace.training.export_program import export_program
from support.command_line import headrace
from support.runs import make_run
from support.training import make_recipe, make_site, write_blobs

MODELS = '''
import torch
from lightning.pytorch import LightningModule
from torch import nn

class Tied(LightningModule):
    """Two names for one weight, a buffer, dropout."""

    def __init__(self, bends=False, example=None):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(8)
        self.bends = bends
        self.example_input_array = None if example is None else torch.zeros(example)

    def forward(self, array):
        if self.bends and array.sum() > 0:
            array = -array
        return self.second(nn.functional.dropout(self.norm(self.first(array)), 0.5, self.training))

class Strange(Tied):
    def forward(self, vector, mask):
        return super().forward(vector * mask)
'''


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export_code")
    (folder / "export_models.py").write_text(MODELS)
    return folder


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blobs") / "dataset"
    write_blobs(folder, train_samples=12)
    return folder


def run_with(folder: Path, code: Path, dataset: Path, name: str = "Tied", **options) -> RunFolder:
    """A run whose model of that name has a checkpoint after seven steps."""
    run = SiteFolder(folder).run("made")
    run.checkpoints.mkdir(parents=True)
    target = {"_target_": f"export_models.{name}", **options}
    content = {"code": [str(code)], "model": target, "dataset": {"name": "b", "path": str(dataset)}}
    write_record(run.recipe, make_recipe(content))
    write_record(run.site, make_site(folder, allowed_code=[str(code)]))
    model = _model(run)
    torch.save({"state_dict": model.state_dict(), "global_step": 7}, run.checkpoints / "final.ckpt")
    return run


def _model(run: RunFolder) -> LightningModule:
    from headrace.data.targets import Allowed, instantiate
    from headrace.steps.context import resolved

    recipe, site = resolved(run)
    assert recipe.model is not None
    torch.manual_seed(11)
    model: LightningModule = instantiate(recipe.model, Allowed.of(recipe, site), "model")
    model(torch.randn(16, 8)) if type(model).__name__ == "Tied" else None  # moves the buffers
    return model.eval()


def test_weights_that_share_memory_are_whole_in_each_format(tmp_path, code, dataset):
    run = run_with(tmp_path, code, dataset)
    wanted = _model(run).state_dict()
    checkpoint = run.checkpoints / "final.ckpt"
    told = headrace("export", str(checkpoint), "-o", str(tmp_path / "a.pt"), "--json")
    done = json.loads(told.stdout)
    assert (done["step"], done["num_tensors"], done["format"]) == (7, 8, "weights")
    assert done["num_values"] == 64 + 4 * 8 + 2 * 8 + 1
    assert done["num_bytes"] == (tmp_path / "a.pt").stat().st_size
    found = torch.load(tmp_path / "a.pt", weights_only=True)
    assert found["first.weight"].data_ptr() == found["second.weight"].data_ptr()
    export_weights(checkpoint, tmp_path / "a.safetensors", "safetensors")
    assert len(load_file(tmp_path / "a.safetensors")) == len(wanted) - 1
    again = read_weights(tmp_path / "a.safetensors")
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
        assert torch.equal(again[name], value), name


def test_parts_of_one_tensor_and_what_is_no_tensor(tmp_path):
    whole = torch.arange(6.0)
    parts = {"left": whole[:4], "right": whole[2:], "turned": whole.reshape(2, 3).t()}
    torch.save({"state_dict": parts}, tmp_path / "a.ckpt")
    done = export_weights(tmp_path / "a.ckpt", tmp_path / "a.safetensors", "safetensors")
    assert (done.num_tensors, done.step) == (3, None)
    again = load_file(tmp_path / "a.safetensors")
    assert all(torch.equal(again[name], value) for name, value in parts.items())
    torch.save({"state_dict": {"x": torch.zeros(1), "extra": "words"}}, tmp_path / "b.ckpt")
    with pytest.raises(UserError, match="hold what is no tensor: extra"):
        export_weights(tmp_path / "b.ckpt", tmp_path / "b.pt", "weights")
    assert not list(tmp_path.glob("*b.pt*"))


def test_a_program_needs_no_code_and_takes_batches_of_any_size(tmp_path, code, dataset):
    run = run_with(tmp_path, code, dataset)
    output = tmp_path / "a.pt2"
    told = headrace(
        "export", str(run.checkpoints / "final.ckpt"), "--format", "torch-export", "-o", str(output)
    )
    assert "forward takes array: float32 (batch, 8)" in told.stdout
    assert "after 7 steps" in told.stdout
    program = torch.export.load(output).module()
    array = torch.randn(9, 8)
    assert torch.allclose(program(array=array), _model(run)(array), atol=1e-6)


def test_an_example_of_the_models_own_tells_what_forward_takes(tmp_path, code):
    run = run_with(tmp_path, code, tmp_path / "nowhere", example=[1, 8])
    done = export_program(run, run.checkpoints / "final.ckpt", tmp_path / "a.pt2", None)
    assert done.inputs == {"array": "float32 (1, 8)"}  # one sample tells of no other number


def test_what_cannot_be_exported_is_told(tmp_path, code, dataset):
    output = tmp_path / "a.pt2"
    run = run_with(tmp_path / "bends", code, dataset, bends=True)
    with pytest.raises(UserCodeError, match="forward of Tied cannot be exported") as caught:
        export_program(run, run.checkpoints / "final.ckpt", output, str(dataset))
    assert "array.sum() > 0" in caught.value.trace
    run = run_with(tmp_path / "strange", code, dataset, "Strange")
    with pytest.raises(RecipeError, match="takes 'vector', which is no field") as unknown:
        export_program(run, run.checkpoints / "final.ckpt", output, str(dataset))
    assert "example_input_array" in unknown.value.hint
    torch.save({"state_dict": nn.Linear(2, 2).state_dict()}, run.checkpoints / "other.ckpt")
    with pytest.raises(UserCodeError, match="do not fit Strange: it lacks first"):
        export_program(run, run.checkpoints / "other.ckpt", output, str(dataset))
    assert not output.exists()


def test_a_runs_checkpoint_is_chosen_and_no_file_is_replaced_unasked(tmp_path, headrace_home):
    run = make_run(overrides=(f"dataset.source={headrace_home}",))
    run.folder.checkpoints.mkdir()
    for name in ("final.ckpt", "step-000000003.ckpt"):
        content = {"state_dict": {"w": torch.zeros(2)}, "global_step": len(name)}
        torch.save(content, run.folder.checkpoints / name)
    output = tmp_path / "a.pt"
    words = ("export", run.run_id, "-o", str(output), "--json")
    assert json.loads(headrace(*words).stdout)["checkpoint"].endswith("final.ckpt")
    before = output.read_bytes()
    with pytest.raises(UserError, match=r"a\.pt exists"):
        headrace(*words, "--checkpoint", "3")
    assert output.read_bytes() == before
    done = json.loads(headrace(*words, "--checkpoint", "3", "--force").stdout)
    assert done["checkpoint"].endswith("step-000000003.ckpt")
    with pytest.raises(UserError, match="lies in no run"):
        headrace("export", str(output), "-o", str(tmp_path / "b"), "--format", "torch-export")
    with pytest.raises(UserError, match="There is no folder"):
        headrace("export", run.run_id, "-o", str(tmp_path / "no" / "a.pt"))
