"""The plan: counts, limits, errors before anything is started."""

from __future__ import annotations

import pytest

from headrace.data.batch_memory import sample_bytes
from headrace.errors import ManifestError, MemoryExhaustedError, RecipeError, UserError
from headrace.files.manifest import FieldInfo, Manifest
from headrace.recipe.evaluate import EvaluateSpec
from headrace.recipe.recipe import StageSpec
from headrace.recipe.site import Role
from headrace.training.training_plan import (
    check_memory,
    plan_training,
    training_fingerprint,
)
from support.training import make_recipe

IMAGE = FieldInfo(name="image", dtype="uint8", shape=(8, 8), layout="fixed")
LABEL = FieldInfo(name="label", dtype="int64", layout="fixed")


def manifest(**splits: int) -> Manifest:
    return Manifest(
        name="d", fingerprint="f", pack_key="k", fields=(IMAGE, LABEL), splits=splits, shards=()
    )


def recipe(size: int = 64, *, trainer=None, train=None, **data):
    return make_recipe(
        {
            "model": {"_target_": "a.B"},
            "data": {"global_batch_size": size, **data},
            "trainer": trainer or {"max_epochs": 15},
            "train": train or {},
        }
    )


ROLE = Role(nodes=2, ranks_per_node=4)
CROP = "headrace.data.transforms.RandomResizedCrop"
PHOTOGRAPH = FieldInfo(name="image", dtype="uint8", layout="ragged", encoding="jpeg")


def test_crops_need_encoded_images_and_memory():
    crops = ({"_target_": CROP, "size": 500},)
    with pytest.raises(UserError, match="needs encoded images, which the field 'image' of"):
        plan_training(recipe(sample_transforms=crops), ROLE, manifest(train=1280))
    photographs = manifest(train=1280).model_copy(update={"fields": (PHOTOGRAPH, LABEL)})
    plain = plan_training(recipe(), ROLE, photographs)
    plan = plan_training(recipe(sample_transforms=crops), ROLE, photographs)
    assert plan.batch_bytes - plain.batch_bytes == 3 * 8 * 3 * 500**2 * 4
    wrong = ({"_target_": "headrace.data.transforms.ScaleToUnit", "field": "imag"},)
    with pytest.raises(RecipeError, match="asks for the field 'imag'"):
        plan_training(recipe(sample_transforms=crops, transforms=wrong), ROLE, photographs)


def test_a_fold_that_is_validated_on_is_not_trained_on():
    folded = manifest(train=1280).model_copy(update={"folds": {"train": (256, 1024)}})
    plan = plan_training(recipe(fold=0), ROLE, folded)
    assert plan.batches_per_epoch == 16


def test_draws_by_weight_may_make_an_epoch_of_another_length():
    drawn = recipe(sampling="balanced", samples_per_epoch=6400)
    assert plan_training(drawn, ROLE, manifest(train=1258)).batches_per_epoch == 100
    with pytest.raises(UserError, match="needs a field 'image' with one number"):
        plan_training(recipe(sampling="image"), ROLE, manifest(train=1258))


def test_transforms_for_fields_that_there_are_not_are_refused_where_it_is_sure():
    there, data = manifest(train=1258), "headrace.data.transforms"
    wrong = {"_target_": f"{data}.ScaleToUnit", "field": "imag"}
    right, other = {"_target_": f"{data}.Normalize", "mean": 0, "std": 1}, {"_target_": "a.Adds"}
    with pytest.raises(RecipeError, match=r"(?s)transforms\[1\] asks.*'imag'.*mean 'image'"):
        plan_training(recipe(transforms=[right, wrong]), ROLE, there)
    with pytest.raises(RecipeError, match=r"augment\[0\] asks for the field 'imag'"):
        plan_training(recipe(augment=[wrong]), ROLE, there)
    for form in ("imag", ["image", "imag"]):
        with pytest.raises(RecipeError, match=r"(?s)batch asks.*'imag'.*mean 'image'"):
            plan_training(recipe(batch=form), ROLE, there)
    plan_training(recipe(batch=["imag"], transforms=[other]), ROLE, there)
    plan_training(recipe(batch=["image", "sample_id"]), ROLE, there)
    for keys in (
        {"transforms": [other], "augment": [wrong]},
        {"transforms": [wrong], "collate": other},
        {"transforms": [wrong], "sample_transforms": [other]},
        {"transforms": [wrong], "dataset": other},
        {"transforms": [wrong | {"field": "image_shape"}]},
    ):
        plan_training(recipe(**keys), ROLE, there)


def test_counts_of_a_training():
    plan = plan_training(recipe(), ROLE, manifest(train=1258, val=180))
    assert plan.world_size == 8
    assert plan.batch_per_rank == 8
    assert plan.batches_per_epoch == plan.steps_per_epoch == 19
    assert plan.total_steps == 285
    assert plan.num_left_out == 1258 - 19 * 64
    assert plan.batch_bytes == 3 * 8 * (64 * 4 + 8)
    processes = recipe(workers=4, collate={"_target_": "a.B"})
    more = plan_training(processes, ROLE, manifest(train=1258, val=180))
    assert more.batch_bytes == (3 + 3 * 4 - 4) * 8 * (64 * 4 + 8)


def test_the_last_batch_is_kept_as_far_as_ranks_can_share_it():
    plan = plan_training(recipe(drop_last=False), ROLE, manifest(train=1258))
    assert plan.batches_per_epoch == 20
    assert plan.num_left_out == 1258 % 8


def test_accumulated_batches_and_a_step_limit():
    trainer = {"max_epochs": 3, "accumulate_grad_batches": 4, "max_steps": 12}
    plan = plan_training(recipe(trainer=trainer), ROLE, manifest(train=1258))
    assert plan.steps_per_epoch == 19
    assert plan.batches_per_epoch == 4 * 19
    assert plan.batch_per_rank == 2
    assert plan.total_steps == 12


def test_the_recipe_overrules_the_site():
    plan = plan_training(recipe(train={"nodes": 1, "ranks_per_node": 2}), ROLE, manifest(train=64))
    assert (plan.num_nodes, plan.ranks_per_node) == (1, 2)


def test_what_cannot_be_trained_is_refused():
    """Pains 29."""
    with pytest.raises(UserError, match="8 ranks cannot share"):
        plan_training(recipe(60), ROLE, manifest(train=1258))
    with pytest.raises(UserError, match="63 samples, too few"):
        plan_training(recipe(), ROLE, manifest(train=63))
    with pytest.raises(UserError, match="3 samples, fewer than 8 ranks"):
        plan_training(recipe(), ROLE, manifest(train=640, val=3))
    with pytest.raises(ManifestError, match="no split 'train'"):
        plan_training(recipe(), ROLE, manifest(test=640))


def test_folds_and_splits_that_a_packed_dataset_lacks_are_named():
    folded = manifest(train=640).model_copy(update={"folds": {"train": (320, 320)}})
    judged = {"evaluate": EvaluateSpec(split="val")}
    plan_training(recipe(fold=1).model_copy(update=judged), ROLE, folded)
    with pytest.raises(ManifestError, match=r"(?s)has 2 folds, no fold 2.*from 0 to 1"):
        plan_training(recipe(fold=2), ROLE, folded)
    with pytest.raises(ManifestError, match=r"(?s)has 0 folds, no fold 0.*Pack with dataset.folds"):
        plan_training(recipe(fold=0), ROLE, manifest(train=640))
    with pytest.raises(ManifestError, match=r"(?s)no split 'val'.*set data\.fold"):
        plan_training(recipe().model_copy(update=judged), ROLE, folded)


def test_splits_that_training_reads_must_be_staged():
    partly = recipe().model_copy(update={"stage": StageSpec(splits=("train", "test"))})
    plan_training(partly, ROLE, manifest(train=640, test=9))
    with pytest.raises(RecipeError, match=r"stage\.splits leaves out val"):
        plan_training(partly, ROLE, manifest(train=640, val=90))


def test_memory_is_checked():
    plan = plan_training(recipe(), ROLE, manifest(train=1258))
    check_memory(plan, plan.batch_bytes * 4)
    with pytest.raises(MemoryExhaustedError, match="Batches of 4 ranks") as caught:
        check_memory(plan, plan.batch_bytes * 4 - 1)
    assert "data.global_batch_size" in caught.value.hint
    assert sample_bytes(manifest(train=1)) == 64 * 4 + 8


def test_the_fingerprint_is_of_recipe_and_data():
    first = training_fingerprint(recipe(), manifest(train=1))
    assert first == training_fingerprint(recipe(), manifest(train=1))
    assert first != training_fingerprint(recipe(32), manifest(train=1))
    fewer = recipe(train={"nodes": 1, "ranks_per_node": 3, "role": "cpu"})
    assert first == training_fingerprint(fewer, manifest(train=1))
    assert first == training_fingerprint(recipe(workers=0), manifest(train=1))
    other = manifest(train=1).model_copy(update={"fingerprint": "other"})
    assert first != training_fingerprint(recipe(), other)
