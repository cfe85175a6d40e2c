"""What the keys for many ranks compute, on two ranks: each against one process's own reckoning."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import zeros_like as zeros
from torch.nn.functional import linear, mse_loss

from headrace.checkpoints import files as checkpoints
from headrace.checkpoints.content import read_checkpoint, read_weights
from headrace.checkpoints.weights import export_weights, weights_hash
from headrace.errors import StepError
from headrace.files.damage import SEAL
from headrace.files.layout import checkpoint_name
from support.training import blob_step, train_here, write_blobs

pytestmark = pytest.mark.slow
Found = list[dict[str, Any]]
TESTS = Path(__file__).parents[2]
WORLD_SIZE = 2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> dict[str, Found]:
    """What each rank found, `check -> [of rank 0, of rank 1, …]`; all checks in one start."""
    folder = tmp_path_factory.mktemp("scale")
    ended = subprocess.run(
        [sys.executable, "-m", "support.scale_ranks", str(folder)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=270,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout.decode()[-4000:]
    return {**_found(folder, "rank", WORLD_SIZE), **_found(folder, "mesh", 4)}


def _found(folder: Path, name: str, count: int) -> dict[str, Found]:
    each = [torch.load(folder / f"{name}-{rank}.pt") for rank in range(count)]
    return {check: [found[check] for found in each] for check in each[0]}


def assert_close(found: list[Tensor], wanted: list[Tensor], error: float = 1e-6) -> None:
    """Vectors that differ by at most a share of the wanted one's largest value."""
    assert len(found) == len(wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=error * float(other.abs().max()))


def distance(one: Tensor, other: Tensor) -> float:
    """Largest difference of two vectors, as a share of the second's largest value."""
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize("options", ["plain", "views", "static"])
def test_gradients_are_those_of_the_joint_batch(ranks, options):
    for each in ranks["plain"]:
        assert_close(each["found"][options], each["wanted"])


def test_smaller_buckets_are_more_messages(ranks):
    few, many = ranks["plain"][0]["counts"]
    assert many > few


def test_fp16_sends_what_fits_into_16_bits(ranks):
    """The sum of halves, rounded once each: exactly that, and not the exact mean."""
    for each in ranks["compressed"]:
        halves = zip(*each["each"], strict=True)
        wanted = [sum(g.half() / WORLD_SIZE for g in both).float() for both in halves]
        assert_close(each["found"], wanted, 0.0)
        means = [torch.stack(both).mean(0) for both in zip(*each["each"], strict=True)]
        assert_close(each["found"], means, 1e-3)
        assert distance(each["found"][0], means[0]) > 0


def test_power_sgd_of_full_rank_is_exact(ranks):
    """Gradients of two samples are of rank two: two columns hold them, one does not."""
    for each in ranks["power_sgd"]:
        assert_close(each["found"][2], each["wanted"], 1e-4)
        whole, narrow = each["found"][1][:2], each["found"][1][2]
        assert_close(whole, each["wanted"][:2])
        assert distance(narrow, each["wanted"][2]) > 0.05
    first, second = (each["found"][1][2] for each in ranks["power_sgd"])
    assert torch.equal(first, second)


def test_local_sgd_trains_apart_and_averages(ranks):
    """Ranks differ between averagings, and agree after: as two processes would by hand."""
    found = ranks["local_sgd"]
    for rank, each in enumerate(found):
        assert_close(each["weights"], each["replicas"][rank])
    apart = [not torch.equal(*both) for both in zip(*(r["weights"] for r in found), strict=True)]
    assert apart == [False, False, False, True, True, False, True]


def test_local_sgd_validates_and_keeps_the_mean(ranks):
    first, second = ranks["local_sgd"]
    assert torch.equal(first["final"], second["final"])
    mean = (first["replicas"][0][-1] + first["replicas"][1][-1]) / 2
    assert_close([first["final"]], [mean])
    assert_close(first["validated"], [mean])
    assert torch.equal(torch.cat([w.flatten() for w in first["saved"].values()]), first["final"])


def test_local_sgd_goes_on_at_its_step(ranks):
    """Resumed after step 4 it averages after step 6, not at once: with plain SGD nothing else
    is lost."""
    for each in ranks["local_sgd"]:
        assert_close(each["after"], each["weights"][4:])


def test_ranks_of_a_node_may_share_gradients(ranks):
    """Both ranks are on one node: weights as of one process."""
    for each in ranks["local_sgd"]:
        assert_close(each["node"], each["one"])


def test_local_sgd_sends_weights_in_place_of_gradients(ranks):
    """Of eight steps, after the first and the fifth."""
    with_gradients = ranks["accumulated"][0]["messages"][1]
    assert ranks["local_sgd"][0]["messages"] == with_gradients - 8 + 2


def test_accumulated_batches_are_one_big_batch_and_one_message(ranks):
    for each in ranks["accumulated"]:
        assert_close(each["found"], [each["wanted"]])
    accumulated, each_batch = ranks["accumulated"][0]["messages"]
    assert each_batch - accumulated == 8 - 2


def test_ranks_do_not_ask_each_other_for_a_signal_before_each_batch(ranks):
    """As Lightning has them do, which would also wait for a GPU."""
    for each in ranks["accumulated"]:
        assert each["watched"] == each["messages"][1] - 8


def test_what_pytorch_does_between_gpus_only_is_refused_by_name(ranks):
    for each in ranks["only_on_gpus"]:
        bf16, synced = each["told"]
        assert "trainer.ddp.comm_hook: bf16 works between GPUs only" in bf16
        assert "trainer.sync_batchnorm works between GPUs only" in synced


def test_fsdp_trains_as_ddp_does(ranks):
    """Clipped gradients, Adam: losses, weights and optimizer states; a rank holds half of them."""
    for each in ranks["sharded"]:
        ddp, fsdp = each["ddp"], each["fsdp"]
        assert fsdp["losses"] == pytest.approx(ddp["losses"], rel=1e-6)
        assert len(set(ddp["losses"])) == ddp["steps"] == fsdp["steps"] == 6
        assert fsdp["saved"].keys() == ddp["saved"].keys()
        for name, value in ddp["saved"].items():
            torch.testing.assert_close(fsdp["saved"][name], value)
        assert fsdp["optimizer"].keys() == ddp["optimizer"].keys()
        for index, state in ddp["optimizer"].items():
            torch.testing.assert_close(fsdp["optimizer"][index]["exp_avg"], state["exp_avg"])
    held = [each["fsdp"]["held"] for each in ranks["sharded"]]
    whole = ranks["sharded"][0]["ddp"]["held"]
    assert sum(held) == whole
    assert max(held) < 0.6 * whole


def test_a_checkpoint_of_fsdp_is_an_ordinary_one(ranks):
    """It is resumed by FSDP, and by DDP."""
    for each in ranks["sharded"]:
        rest = each["ddp"]["losses"][4:]
        assert each["resumed"] == pytest.approx(rest, rel=1e-6)
        assert each["back"] == pytest.approx(rest, rel=1e-6)


def test_a_checkpoint_in_parts_is_the_same_as_one_file(ranks, tmp_path):
    """Each rank has written some; resumed, and put together, it gives the same bits."""
    for each in ranks["sharded"]:
        assert each["parts"] == each["fsdp"]["losses"]
        assert each["again"] == each["parts"][4:]
        assert "network.2.weight is (1, 16) there and (2, 16) here" in each["misfit"]
    first = ranks["sharded"][0]
    for name in ("parts", "again"):
        final = Path(first["folder"]) / name / checkpoints.FINAL
        assert {path.name[:3] for path in final.glob("__*")} == {"__0", "__1"}
        found = read_checkpoint(final)
        assert found["global_step"] == 6
        assert found["state_dict"].keys() == first["fsdp"]["saved"].keys()
        for key, value in first["fsdp"]["saved"].items():
            assert torch.equal(found["state_dict"][key], value)
    done = export_weights(final, tmp_path / "a.safetensors", "safetensors")
    assert (done.num_tensors, done.step) == (len(first["fsdp"]["saved"]), 6)


def test_damage_to_any_file_of_a_checkpoint_in_parts_is_told(ranks, tmp_path):
    kept = Path(ranks["sharded"][0]["folder"]) / "parts"
    older, newer = (tmp_path / checkpoint_name(step) for step in (4, 6))
    shutil.copytree(kept / older.name, older)
    names = [path.name for path in older.iterdir()]
    assert len(names) == 5
    for name in names:
        shutil.copytree(kept / checkpoints.FINAL, newer)
        assert checkpoints.newest_whole(tmp_path) == newer
        content = bytearray((newer / name).read_bytes())
        content[len(content) // 2] ^= 1
        for harmed in (content, content[:-9], None):
            (newer / name).unlink() if harmed is None else (newer / name).write_bytes(harmed)
            if harmed is not None or name != SEAL:
                assert checkpoints.newest_whole(tmp_path) == older, (name, harmed is None)
            with pytest.raises(StepError, match="is damaged"):
                read_checkpoint(newer)
        checkpoints.remove(newer)
    assert [path.name for path in tmp_path.iterdir()] == [older.name]


def test_tensor_parallel_ranks_work_on_the_same_samples(ranks):
    """A model that splits its blocks by itself, against one process; the last layer is whole.

    Gradients are clipped, of both kinds together.
    """
    for each in ranks["tensor_parallel"]:
        assert each["losses"] == pytest.approx(each["wanted"], rel=1e-5)
        assert each["held"] == [8, 8, 8, 8]


def test_layers_may_be_both_split_and_sharded(ranks):
    """A mesh of two by two ranks, of which neighbours get the same samples.

    Gradients of weights that only one axis shares out are clipped with the others.
    """
    found = ranks["meshed"]
    wanted = found[0]["wanted"]
    assert found[0]["losses"] == found[1]["losses"]
    assert found[0]["losses"] != found[2]["losses"]
    both = zip(found[0]["losses"], found[2]["losses"], strict=True)
    assert [sum(each) / 2 for each in both] == pytest.approx(wanted["losses"], rel=1e-5)
    assert len(wanted["losses"]) == 6
    for each in found:
        assert each["resumed"] == pytest.approx(each["losses"][4:], rel=1e-6)
        assert each["again"] == pytest.approx(each["losses"][5:], rel=1e-6)
        assert each["held"] < 0.3 * sum(weight.numel() for weight in wanted["weights"].values())
        for name, weight in wanted["weights"].items():
            torch.testing.assert_close(each["saved"][name], weight)
    for name, value in read_checkpoint(Path(found[0]["parts"]))["state_dict"].items():
        torch.testing.assert_close(value, wanted["weights"][name])


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_of_stages_computes_what_the_whole_model_does(ranks, schedule):
    """The example's: two steps of four micro-batches, a half of the layers on each rank."""
    names = []
    for each in ranks["pipelined"]:
        seen = each["found"][schedule]
        assert seen["losses"] == pytest.approx(seen["wanted_losses"], rel=1e-6)
        assert_close(seen["found"], seen["wanted"], 1e-5)
        names += seen["names"]
    assert names == ranks["pipelined"][0]["all"]


def test_what_fsdp_cannot_shard_is_refused_by_name(ranks):
    for each in ranks["not_to_be_sharded"]:
        bare, tied, unknown = each["told"]
        assert "the weight scale lies in no part" in bare
        assert "the weight network.0.linear.weight lies in two parts" in tied
        assert "Did you mean 'Block'?" in unknown
    told = [each["told"] for each in ranks["sharded_with_a_pickle"]]
    assert len(told[0]) == 2
    assert all("support.scale_models.Block" in each for each in told[0])
    assert told[1] == []


def test_averaged_weights_are_validated_kept_and_resumed(ranks):
    """Updated after steps 1, 3 and 5; the first takes the weights as they are."""
    for each in ranks["averaged"]:
        first, _, third, _, fifth, _ = each["weights"]
        fourth = 0.8 * first + 0.2 * third
        average = 0.8 * fourth + 0.2 * fifth
        assert distance(average, each["weights"][-1]) > 0.01
        assert_close(each["validated"], [average])
        assert_close([each["final"], each["resumed"]], [average, average])
        for name, wanted in {"final": average, "best": average, "fourth": fourth}.items():
            assert_close([each["saved"][name]], [wanted])
        assert torch.equal(each["resumed"], each["final"])


@pytest.mark.parametrize(("rule", "whole"), [("linear", 4.0), ("sqrt", 2.0)])
def test_learning_rates_grow_with_the_batch_over_a_warm_up(ranks, rule, whole):
    """Batches of 8 for a rate meant for 2; a scheduler halves it after each step."""
    factors = [1 + (whole - 1) * min(step / 3, 1) for step in range(6)]
    wanted = [0.1 * 0.5**step * factor for step, factor in enumerate(factors)]
    for each in ranks["scaled_rates"]:
        found = each[rule]
        assert found["rates"] == pytest.approx(wanted, rel=1e-3)
        assert found["resumed"] == pytest.approx(wanted[4:], rel=1e-3)
        assert found["saved"] == pytest.approx(0.1 * 0.5**4)


def by_lars(weight: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
    """You et al. 2017, with momentum 0.5, decay 0.1, trust 0.02 of matrices, and a rate of 2."""
    if weight.ndim > 1:
        whole = gradient.norm() + 0.1 * weight.norm()
        gradient = 0.02 * weight.norm() / whole * (gradient + 0.1 * weight)
    state["m"] = 0.5 * state["m"] + gradient
    return weight - 2.0 * state["m"]


def by_lamb(weight: Tensor, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
    """You et al. 2020, Algorithm 2 without corrections of bias; decay 0.1, a rate of 0.05."""
    state["m"] = 0.9 * state["m"] + 0.1 * gradient
    state["v"] = 0.999 * state["v"] + 0.001 * gradient**2
    update = state["m"] / (state["v"].sqrt() + 1e-6) + 0.1 * weight
    return weight - 0.05 * weight.norm() / (update.norm() + 1e-6) * update


@pytest.mark.parametrize(("name", "rule"), [("LARS", by_lars), ("Lamb", by_lamb)])
def test_optimizers_of_large_batches_are_named_in_the_recipe(ranks, name, rule):
    """Four steps on two ranks, and two after a resume, are those of the papers' formulas."""
    for each in ranks["large_batches"]:
        found = each["found"][name]
        weights = found["begun"]
        states = {key: {"m": zeros(value), "v": zeros(value)} for key, value in weights.items()}
        for values, wanted in each["batches"]:
            taken = {key: value.clone().requires_grad_() for key, value in weights.items()}
            one, other = (
                (taken[f"network.{n}.weight"], taken[f"network.{n}.bias"]) for n in (0, 2)
            )
            output = linear(linear(values, *one).tanh(), *other)
            gradients = torch.autograd.grad(mse_loss(output, wanted), list(taken.values()))
            both = zip(weights.items(), gradients, strict=True)
            weights = {key: rule(value, slope, states[key]) for (key, value), slope in both}
        for key, value in weights.items():
            torch.testing.assert_close(found["weights"][key], value, rtol=1e-4, atol=1e-6)
            assert torch.equal(found["resumed"][key], found["weights"][key])


def test_optimizers_that_the_site_does_not_list_are_refused(ranks):
    for each in ranks["large_batches"]:
        for name, told in zip(("LARS", "Lamb"), each["told"], strict=True):
            assert f"does not allow the target 'pytorch_optimizer.{name}' at model.optim" in told


@pytest.mark.parametrize("own_sampler", [False, True])
def test_loaders_over_samples_are_shared_out_by_lightning(ranks, own_sampler):
    """As in a script: each sample once an epoch, also by a sampler that knows no ranks.

    Of five samples to validate on, which two ranks cannot share equally, one comes twice.
    """
    one, other = (each["found"][own_sampler] for each in ranks["datamodule"])
    for epoch in (slice(0, 10), slice(10, 20)):
        assert sorted(one["train"][epoch] + other["train"][epoch]) == list(range(20))
    assert one["train"][:10] != one["train"][10:]
    assert sorted(one["val"][:3] + other["val"][:3]) == [20, 20, 21, 22, 23, 24]


def test_a_rate_that_was_looked_for_is_trained_with(ranks):
    """Weights and order are those before the search, the rate is the same on all ranks."""
    first, second = ranks["found_rates"]
    assert first["rate"] == second["rate"] != pytest.approx(0.1)
    for each in (first, second):
        assert torch.equal(each["found"], each["wanted"])


@pytest.mark.parametrize(
    ("form", "like"),
    [
        ("recomputed", "plain"),
        ("recomputed_sharded", "plain"),
        ("compiled", "plain"),
        ("channels_last", "convolved"),
    ],
)
def test_a_model_computes_the_same_in_another_form(ranks, form, like):
    """With dropout: what is computed again drops the same."""
    for each in ranks["forms"]:
        found, wanted = each["found"][form], each["found"][like]
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-5)
        assert found["saved"].keys() == wanted["saved"].keys()
        for name, value in wanted["saved"].items():
            torch.testing.assert_close(found["saved"][name], value)


def test_forms_are_what_they_say(ranks):
    """Three steps: a block that computes again is called six times."""
    for each in ranks["forms"]:
        found = each["found"]
        assert found["plain"]["calls"] == [3, 3]
        assert found["recomputed"]["calls"] == found["recomputed_sharded"]["calls"] == [6, 6]
        assert found["convolved"]["layouts"] == {False}
        assert found["channels_last"]["layouts"] == {True}
        assert each["graphs"] > 0


def test_a_sharded_training_that_is_killed_goes_on(tmp_path, no_leftover_processes):
    """In the middle of a checkpoint, of which each rank has written its part; then on one rank.

    By the ranks of a step; two ranks' sums are the same bits in FSDP and DDP.
    """
    write_blobs(tmp_path / "dataset")
    sharded = {"strategy": "fsdp", "sharded_checkpoints": True}
    dies = {"_target_": "blob_callbacks.DiesWhileWriting", "notes": str(tmp_path)}
    killed = _train(tmp_path / "fsdp", {**sharded, "callbacks": [dies]})
    plain = _train(tmp_path / "ddp", {})
    assert killed["restarts"] >= 1
    assert killed["weights_xxh3"] == plain["weights_xxh3"]
    assert killed["metrics"]["val/accuracy"] == plain["metrics"]["val/accuracy"]
    folder = tmp_path / "fsdp/runs/run/checkpoints"
    assert weights_hash(read_weights(folder / checkpoints.FINAL)) == plain["weights_xxh3"]
    assert sorted(path.name[:4] for path in folder.glob("*.ckpt")) == [
        "best",
        "fina",
        *2 * ["step"],
    ]
    assert list(folder.glob(".*")) == []

    (folder / checkpoints.OUTCOME).unlink()
    next((folder / checkpoint_name(9)).glob("__0_*")).write_bytes(b"torn")
    alone = _train(tmp_path / "fsdp", {**sharded, "callbacks": [dies]}, ranks=1)
    assert (alone["world_size"], alone["steps"]) == (1, 10)
    lines = (tmp_path / "fsdp/notes/rank-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines][-4:] == [7, 8, 9, 10]
    assert alone["weights_xxh3"] == weights_hash(read_weights(folder / checkpoints.FINAL))


def _train(folder: Path, trainer: dict[str, Any], ranks: int = 2) -> dict[str, Any]:
    keys = {"max_epochs": 1, "monitor": "val/accuracy", **trainer}
    return train_here(
        blob_step(folder, site={"ranks": ranks}, trainer=keys), folder.parent / "dataset"
    )
