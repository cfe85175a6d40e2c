"""Requests that cannot be used are refused at once: in words, without a trace, leaving nothing."""

from __future__ import annotations

import json

import pytest

from headrace.states import FailureClass
from support.bad_input import USAGE, Place, make_place, words
from support.command_line import refusal

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    return make_place(tmp_path_factory.mktemp("refused"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["blob"], ["There is no recipe 'blob'", "Did you mean 'blobs'?"]),
        (
            ["no.yaml"],
            ["The recipe file 'no.yaml' does not exist", "The working folder is", "blobs"],
        ),
        (["blobs", "--site", "her"], ["There is no site 'her'", "Did you mean 'here'?"]),
        (
            ["blobs", "data.global_batchsize=8"],
            ["unknown key 'data.global_batchsize'", "Did you mean 'global_batch_size'?"],
        ),
        (["blobs", "seed=many"], ["blobs.yaml with seed=many: seed:", "integer", "(got 'many')"]),
        (["blobs", "seed"], ["'seed' is not of the form key=value", "trainer.max_epochs=3"]),
        (["blobs", "train.role=tpu"], ["train.role", "'tpu'", "site 'here'", "Valid: cpu, gpu."]),
        (["blobs", "data.global_batch_size=9"], ["9", "2 ranks", "Nearest valid: 8 or 10."]),
        (
            ["blobs", "model._target_=blob_modles.BlobModel"],
            ["no module is called 'blob_modles'", "Did you mean 'blob_models'?"],
        ),
        (
            ["blobs", "model._target_=torch.nn.Linear"],
            ["'model' is the class torch.nn.Linear, not a LightningModule", "Wrap it in a"],
        ),
        (
            ["blobs", "dataset.index=labels.csv"],
            ["'index' is about raw samples, but 'path' names a packed dataset; keep one"],
        ),
        (
            ["blobs", "model._target_=blob_models.BlobModl"],
            ["'blob_models.BlobModl' does not exist", "Did you mean 'BlobModel'?"],
        ),
        (
            ["blobs", "model.dyes=3"],
            ["model: blob_models.BlobModel has no argument 'dyes'", "Did you mean 'dies'?"],
        ),
        (["blobs", "dataset.source=/x"], ["either 'source'", "or 'path'"]),
    ],
)
def test_a_request_that_cannot_be_used_is_refused(place, arguments, expected, monkeypatch):
    """What is raised for the user is what the terminal shows after `error:`."""
    monkeypatch.setenv("HEADRACE_HOME", str(place.home))
    monkeypatch.chdir(place.home)
    site = [] if "--site" in arguments else ["--site", "here"]
    told = refusal("run", *arguments, *site)
    assert told.failure_class is FailureClass.USER_ERROR
    words(str(told), *expected)
    assert len(str(told).splitlines()) <= 4


def test_refused_requests_leave_nothing(tmp_path):
    place = make_place(tmp_path)
    done = place.run("blobs", "train.role=tpu")
    assert done.returncode == USAGE, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "leases").exists()
    assert json.loads(place.headrace("runs", "--json").stdout) == []


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HEADRACE_LEDGER": "nonsense"}, ["'nonsense' cannot be read", "sqlite:////absolute"]),
        (
            {"HEADRACE_LEDGER": "mysql://me:geheim@db/x"},
            ["mysql://me:***@db/x", "Valid: postgresql, sqlite."],
        ),
        ({"HEADRACE_HOME": "/dev/null/home"}, ["/dev/null/home/ledger.db", "Not a directory"]),
    ],
)
def test_a_home_or_ledger_that_cannot_be_used_is_named(place, environment, expected):
    done = place.headrace("run", "digits", **environment)
    assert done.returncode == 1
    words(done.stderr, *expected)
    assert "Traceback" not in done.stderr
    assert "geheim" not in done.stderr


def test_a_secret_in_a_url_reaches_no_file(place):
    """Neither the terminal nor any file of the home shows it."""
    done = place.run("blobs", "dataset.path=s3://AKIAKEY:hid/den@bucket/x")
    assert done.returncode == USAGE
    assert "'path' holds credentials" in done.stderr
    assert "dataset.path=s3://***@bucket/x" in done.stderr
    kept = [path for path in place.home.rglob("*") if path.is_file()]
    assert kept
    for text in (done.stdout, done.stderr, *(path.read_bytes().decode("latin-1") for path in kept)):
        assert "hid/den" not in text
