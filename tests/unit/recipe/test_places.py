"""Paths of a recipe lead only where the site lets them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from urllib.parse import quote

import pytest

from headrace.errors import RecipeError, TargetError
from headrace.recipe.fence import absolute, check_places, opened
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.site import Role, Site
from headrace.recipe.target_arguments import check_arguments
from headrace.recipe.targets import check_targets, listed_by
from headrace.runs.resolve import resolve
from support.training import make_site

STOP = "lightning.pytorch.callbacks.ModelCheckpoint"
BASE = ("dataset.source=/data/x", "dataset.labels=auto")
CSV = "lightning.pytorch.loggers.CSVLogger"


@pytest.fixture
def site(tmp_path: Path, headrace_home: Path) -> Site:
    """Lists /data for reading, /results and a bucket for writing."""
    return make_site(
        headrace_home / "site",
        allowed_sources=["/data", str(tmp_path / "listed"), "s3://open/raw"],
        allowed_outputs=["/results", "s3://open/packed/"],
        allowed_code=["/opt/code"],
    )


def check(site: Site, *overrides: str, is_from_terminal: bool = False) -> None:
    recipe = absolute(load_recipe("digits", [*BASE, *overrides]))
    check_places(recipe, opened(site, is_from_terminal=is_from_terminal))


@pytest.mark.parametrize(
    "override",
    [
        "dataset.source=/data",
        "dataset.source=/data/a/../b",
        "dataset.source=s3://open/raw/2025",
        "dataset.source=file:///data/x",
        "pack.target=/results/packed",
        "pack.target=s3://open/packed",
        "trainer.checkpoint_target=s3://open/packed/kept",
        "trainer.extra.default_root_dir=/results/me",
        f"trainer.callbacks=[{{_target_: {STOP}, monitor: val/loss, dirpath: /results/x}}]",
        f"trainer.loggers=[{{_target_: {CSV}, save_dir: logs}}]",
        "model.weights=/data/pretrained.pt",
        "train.init_from=/data/pretrained.ckpt",
        "model.sep=/",
        "dataset.index=tables/index.csv",
    ],
)
def test_what_the_site_lists_is_allowed_from_airflow(site, override):
    check(site, override)


def test_training_may_begin_with_weights_of_the_sites_runs_and_nothing_else_lies_there(site):
    for key in ("train.init_from", "evaluate.checkpoint"):
        check(site, f"{key}={site.folder}/runs/a/checkpoints/final.ckpt")
    with pytest.raises(RecipeError, match="does not let recipes go"):
        check(site, f"dataset.source={site.folder}/runs/a")


@pytest.mark.parametrize(
    ("override", "key", "line"),
    [
        ("dataset.source=/etc", "dataset.source", 'allowed_sources: ["/etc"]'),
        ("train.init_from=/etc/x.ckpt", "train.init_from", 'allowed_sources: ["/etc/x.ckpt"]'),
        ("evaluate.also_checkpoints=[/etc/x.ckpt]", "evaluate.checkpoint", "/etc/x.ckpt"),
        ("dataset.source=/data/../etc", "dataset.source", 'allowed_sources: ["/etc"]'),
        ("dataset.source=//etc", "dataset.source", "allowed_sources"),
        ("dataset.source=/database", "dataset.source", 'allowed_sources: ["/database"]'),
        ("dataset.source=file:///etc", "dataset.source", "allowed_sources"),
        ("dataset.source=~/.ssh", "dataset.source", ".ssh"),
        ("dataset.source='~nobody_of_that_name/x'", "dataset.source", "allowed_sources"),
        ("dataset.source=raw", "dataset.source", f"{Path.cwd()}/raw"),
        ("dataset.source=/results", "dataset.source", "allowed_sources"),
        ("dataset.source=s3://open/raw2", "dataset.source", 'allowed_sources: ["s3://open/raw2"]'),
        ("dataset.source=s3://open/raw/../x", "dataset.source", "allowed_sources"),
        ("dataset.source=http://127.0.0.1/x", "dataset.source", "allowed_sources"),
        ("pack.target=/data/x", "pack.target", 'allowed_outputs: ["/data/x"]'),
        ("pack.target=s3://open/raw", "pack.target", "allowed_outputs"),
        ("trainer.checkpoint_target=/data/x", "trainer.checkpoint_target", "allowed_outputs"),
        ("trainer.extra.default_root_dir=/tmp", "trainer.extra.default_root_dir", "/tmp"),
        (
            f"trainer.callbacks=[{{_target_: {STOP}, dirpath: /root/.ssh}}]",
            r"trainer.callbacks\[0\].dirpath",
            'allowed_outputs: ["/root/.ssh"]',
        ),
        (
            f"trainer.callbacks=[{{_target_: {STOP}, filename: a/../../../x}}]",
            r"trainer.callbacks\[0\].filename",
            "allowed_outputs",
        ),
        (
            f"trainer.loggers=[{{_target_: {CSV}, save_dir: 'file:/etc'}}]",
            r"trainer.loggers\[0\].save_dir",
            "allowed_outputs",
        ),
        (
            f"trainer.loggers=[{{_target_: {CSV}, save_dir: 'simplecache::/etc'}}]",
            r"trainer.loggers\[0\].save_dir",
            "allowed_outputs",
        ),
        ("model.deep={weights: [/etc/passwd]}", r"model.deep.weights\[0\]", "/etc/passwd"),
        ("model.weights=../x.pt", "model.weights", "../x.pt"),
    ],
)
def test_other_places_are_refused_with_the_line_to_write(site, override, key, line):
    with pytest.raises(RecipeError, match=f"{key} leads to") as caught:
        check(site, override)
    assert line in caught.value.hint


@pytest.mark.parametrize(
    "override",
    [
        "train.args=[--out=/etc/x]",
        "train.args=[--out,/etc/x]",
        "train.args=[data.path=/etc/x]",
        "train.args={--out: [a, /etc/x]}",
        "args.data.path=/etc/x",
        "args.--out=/etc/x",
    ],
)
def test_arguments_of_a_script_lead_nowhere_else(site, override):
    script = ("model=null", "evaluate=null", "train.script=/opt/code/x.py")
    with pytest.raises(RecipeError, match=r"train\.args leads to /etc/x"):
        check(site, *script, override)
    check(site, *script, override.replace("/etc", "/data"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("dataset.index=/etc/passwd.csv", "does not let recipes go"),
        ("dataset.index=../../etc/x.csv", "does not let recipes go"),
        (f"trainer.loggers=[{{_target_: {CSV}, save_dir: $HOME/x}}]", "no path"),
        (f"trainer.loggers=[{{_target_: {CSV}, name: /}}]", "no path"),
    ],
)
def test_what_leads_out_of_its_folder_is_refused(site, override, words):
    with pytest.raises(RecipeError, match=words):
        check(site, override)


def test_links_are_followed(site, tmp_path):
    (tmp_path / "listed").mkdir()
    check(site, f"dataset.source={tmp_path}/listed/x")
    (tmp_path / "listed" / "x").symlink_to("/etc")
    (tmp_path / "listed" / "circle").symlink_to("circle")
    for name in ("x", "circle"):
        with pytest.raises(RecipeError, match=r"dataset\.source leads to"):
            check(site, f"dataset.source={tmp_path}/listed/{name}")


def test_a_user_in_a_terminal_may_go_where_the_account_may(site, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for place in (
        "~/x",
        str(tmp_path / "work" / "raw"),
        "raw",
        f"{site.folder}/runs",
        "/etc",
        "s3://any",
    ):
        overrides = (f"dataset.source='{place}'", f"pack.target='{place}'")
        check(site, *overrides, is_from_terminal=True)
        for override in overrides:
            with pytest.raises(RecipeError, match="leads to"):
                check(site, override)


def test_code_and_loggers_that_send_are_open_in_a_terminal_only(site, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb = "trainer.loggers=[{_target_: lightning.pytorch.loggers.WandbLogger}]"
    for override in (f"code=[{tmp_path}/mine]", wandb):
        recipe = load_recipe("digits", [override])
        for is_from_terminal in (True, False):
            place = opened(site, is_from_terminal=is_from_terminal)
            with nullcontext() if is_from_terminal else pytest.raises(TargetError, match="allow"):
                check_targets(recipe, place)
                check_arguments(recipe, Role(), listed_by(place))


def test_the_examples_and_the_datasets_of_the_site_are_open_from_airflow(site, headrace_home):
    laptop = opened(load_site("laptop"), is_from_terminal=False)
    check_places(load_recipe("digits"), laptop)
    check(site, f"dataset.source={headrace_home}/site/datasets/x")
    with pytest.raises(RecipeError, match="leads to"):
        check(site, f"dataset.source={headrace_home}/site/leases")


def test_code_is_seen_from_the_folder_of_the_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = absolute(load_recipe("digits", ["code=[., code, ~/code, /code]"]))
    assert recipe.code == (str(tmp_path), str(tmp_path / "code"), "~/code", "/code")


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("here.csv", "{at}/here.csv"),
        ("both.csv", "both.csv"),  # the source comes first
        ("there.csv", "there.csv"),
        ("/whole.csv", "/whole.csv"),
        ("*.csv", "*.csv"),
    ],
)
@pytest.mark.parametrize("source", ["data", "{at}/data", "file://{at}/data", "data/all.tar"])
def test_an_index_may_lie_in_the_folder_of_the_call(tmp_path, monkeypatch, index, expected, source):
    (tmp_path / "data").mkdir()
    for name in ("here.csv", "both.csv", "data/both.csv", "data/there.csv", "data/all.tar"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    named = [f"dataset.source={source.format(at=tmp_path)}", f"dataset.index='{index}'"]
    recipe = absolute(load_recipe("digits", [*named, "dataset.labels=index"]))
    assert recipe.dataset.index == expected.format(at=tmp_path)


def test_an_index_of_a_store_is_not_looked_for_in_the_folder_of_the_call(tmp_path, monkeypatch):
    (tmp_path / "here.csv").touch()
    monkeypatch.chdir(tmp_path)
    named = ["dataset.source=s3://b/x", "dataset.index=here.csv", "dataset.labels=index"]
    assert absolute(load_recipe("digits", named)).dataset.index == "here.csv"


@pytest.mark.parametrize("url", ["file://{}", "file://localhost{}", "file://{}?x#y"])
def test_a_file_url_becomes_its_path_before_anything_reads_it(tmp_path, url):
    folder = tmp_path / "my data%"
    recipe = load_recipe("digits", ["dataset.source=" + url.format(quote(str(folder)))])
    assert absolute(recipe).dataset.source == str(folder)


@pytest.mark.parametrize("url", ["file://../data/x", "file://host/data/x", "file://[/data/x"])
def test_a_file_url_of_another_host_is_no_path(site, url):
    with pytest.raises(RecipeError, match=r"dataset\.source leads to"):
        check(site, f"dataset.source={url}")


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("dataset.source", [*BASE, "dataset.source={}", "dataset.index=labels.csv"]),
        ("pack.target", [*BASE, "pack.target={}"]),
        ("train.init_from", [*BASE, "train.init_from={}"]),
        ("code", [*BASE, "code=['{}']"]),
    ],
)
def test_the_home_of_an_unknown_user_is_refused(headrace_home, tmp_path, monkeypatch, key, given):
    (tmp_path / "labels.csv").write_text("path,label\n")
    monkeypatch.chdir(tmp_path)
    place = "~no-such-user/a.h5"
    recipe = load_recipe("digits", [each.replace("{}", place) for each in given])
    with pytest.raises(RecipeError, match=f"{key} is '{place}', in the home of a user"):
        resolve(recipe, load_site("laptop"), "train", is_from_terminal=True)
