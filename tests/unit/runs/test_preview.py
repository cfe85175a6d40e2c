"""What a run would ask of a site, in words."""

from __future__ import annotations

import pytest

from headrace.errors import RecipeError
from headrace.execution.execute import previews
from headrace.packing.pack_step import pack
from headrace.recipe.load import load_recipe, load_site
from headrace.runs import resolve
from support.packing import image_source, in_process, make_context, write_image

__all__ = ["image_source", "in_process", "make_context"]


def test_the_time_limit_of_a_job_is_explained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURM_CONF", "/somewhere/slurm.conf")
    found = {each.role: each for each in previews(load_recipe("digits"), load_site("slurm-dev"))}
    assert "#SBATCH --time=01:00:00" in found["gpu"].script
    assert found["gpu"].time.startswith("time limit 1:00:00, the `lifetime` of the role; the lease")
    assert "goes on in another job" in found["gpu"].time
    assert "goes on" not in found["cpu"].time


def test_a_lease_of_this_machine_has_no_time_limit_but_its_own():
    found = previews(load_recipe("digits"), load_site("laptop"))
    assert {each.script for each in found} == {""}
    assert all(each.time.endswith("the `lifetime` of the role") for each in found)


@pytest.mark.parametrize("form", ["files", "table"])
def test_what_is_packed_already_asks_a_queue_for_no_lease_of_its_own(
    image_source, make_context, in_process, monkeypatch, form
):
    source = image_source
    if form == "table":
        source = source.with_name("rows.csv")
        source.write_text("x,label\n" + "".join(f"{each},{each % 2}\n" for each in range(40)))
    context = make_context(source)
    own = {"folder": context.site.folder, "allowed_sources": ("/",)}
    site, recipe = load_site("slurm-dev").model_copy(update=own), context.recipe

    def leases():
        return [each.role for each in previews(recipe, site, "suite")]

    assert leases() == ["cpu", "gpu"]
    pack(context, in_process)
    assert leases() == ["gpu"]
    if form == "files":
        _check_what_the_nodes_are_asked(recipe, site, monkeypatch)
        write_image(source / "cat" / "new.png", 77)
    else:
        source.write_text(source.read_text() + "40,0\n")
    assert leases() == ["cpu", "gpu"]


@pytest.mark.parametrize("kind", ["suite", "pack"])
def test_folders_of_unclear_meaning_ask_a_queue_for_nothing(image_source, make_context, kind):
    context = make_context(image_source)
    image_source.joinpath("cat").rename(image_source / "train")
    own = {"folder": str(image_source.parent), "allowed_sources": ("/",)}
    with pytest.raises(RecipeError, match=r"'train' .* may be a split or not"):
        previews(context.recipe, load_site("slurm-dev").model_copy(update=own), kind)


def _check_what_the_nodes_are_asked(recipe, site, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(resolve, "_LISTING_S", -1.0)  # a source that takes longer to list
        assert [each.role for each in previews(recipe, site, "suite")] == ["cpu", "gpu"]
    code = recipe.dataset.model_copy(update={"reader": "mine.read"})  # is not called here
    with_code = recipe.model_copy(update={"dataset": code})
    with monkeypatch.context() as patch:
        patch.setattr("headrace.packing.opened_source.is_packed", lambda *_: True)
        assert resolve._on_one_lease(recipe, site).packing_role == "gpu"
        assert resolve._on_one_lease(with_code, site) is with_code
