"""Copies of checkpoints in an object store: what is there, what goes, what is brought back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.checkpoints import files as checkpoints
from headrace.errors import StoreAccessError
from headrace.files.atomic import write_text
from headrace.files.layout import checkpoint_name, kept_name
from headrace.objects.protocol import Store
from headrace.objects.store import below, open_store
from headrace.steps.context import StepContext
from headrace.training.checkpoint_copies import CheckpointCopies
from support.checkpoints import write_in_parts
from support.s3_servers import S3Server
from support.training import make_context, make_recipe, make_site

BEST = checkpoints.best_name_of(1)


@pytest.fixture
def context(tmp_path: Path, rclone_server: S3Server, rclone_bucket: str) -> StepContext:
    trainer = {"checkpoint_target": f"{rclone_bucket}/kept"}
    recipe = make_recipe({"model": {"_target_": "a.B"}, "trainer": trainer})
    site = make_site(tmp_path, s3={"endpoint_url": rclone_server.endpoint_url})
    made = make_context(tmp_path, recipe, site)
    made.run_folder.checkpoints.mkdir()
    return made


@pytest.fixture
def store(context: StepContext, rclone_server: S3Server, rclone_bucket: str) -> Store:
    return open_store(below(rclone_bucket, "kept", "run"), rclone_server.options)


def saved(context: StepContext, step: int, *, in_parts: bool = False) -> Path:
    path = context.run_folder.checkpoints / checkpoint_name(step)
    weights = {"w": torch.arange(1000) + step}
    if in_parts:
        return write_in_parts(path, weights)
    torch.save({"state_dict": weights}, path)
    return path


def copied(context: StepContext) -> None:
    with CheckpointCopies(context) as copies:
        copies.finish()


def lost_and_brought(context: StepContext) -> list[str]:
    folder = context.run_folder.checkpoints
    shutil.rmtree(folder)
    folder.mkdir()
    with CheckpointCopies(context):
        return sorted(path.name for path in folder.iterdir())


def events(context: StepContext, kind: str) -> list[dict[str, Any]]:
    lines = context.folder.events.read_text().splitlines()
    return [each for line in lines if (each := json.loads(line))["event"] == kind]


def test_what_is_there_is_copied_and_brought_back(context: StepContext, store: Store) -> None:
    folder = context.run_folder.checkpoints
    for step in (1, 2):
        saved(context, step)
    copied(context)
    checkpoints.remove(folder / checkpoint_name(1))
    newest = saved(context, 3, in_parts=True)
    (folder / BEST).write_bytes(b"best")
    (folder / kept_name(2)).write_bytes(b"named by evaluate.checkpoint")
    write_text(folder / checkpoints.BEST, "{}")
    contents = {path.name: path.read_bytes() for path in newest.iterdir()}
    copied(context)
    kept = [checkpoint_name(2), checkpoint_name(3), BEST, kept_name(2), checkpoints.BEST]
    found = {file.path.split("/")[0] for file in store.list_files()}
    assert found == {*kept, *(f"{name}.json" for name in kept)}
    versions = {file.path: file.version for file in store.list_files()}
    copied(context)
    assert {file.path: file.version for file in store.list_files()} == versions  # none anew
    assert lost_and_brought(context) == sorted({BEST, checkpoints.BEST, kept_name(2), newest.name})
    assert {path.name: path.read_bytes() for path in newest.iterdir()} == contents
    assert checkpoints.newest_whole(folder) == newest
    assert len(events(context, "brought_checkpoint")) == 1


def test_damaged_and_half_copies_are_passed_over(context: StepContext, store: Store) -> None:
    """A flipped bit, a copy that was never finished, and one that leads out of the folder."""
    for step in (1, 2, 3, 4):
        saved(context, step)
    copied(context)
    content = bytearray(store.read(checkpoint_name(4)))
    content[len(content) // 2] ^= 1
    store.write(checkpoint_name(4), bytes(content))
    about = json.loads(store.read(f"{checkpoint_name(3)}.json"))
    store.write(f"{checkpoint_name(3)}.json", json.dumps({**about, "is_whole": False}).encode())
    outside = {"files": {f"{checkpoint_name(2)}/../../x": "0"}, "is_whole": True}
    store.write(f"{checkpoint_name(2)}.json", json.dumps(outside).encode())
    assert lost_and_brought(context) == [checkpoint_name(1)]
    told = [Path(each["checkpoint"]).name for each in events(context, "damaged_checkpoint")]
    assert told == [checkpoint_name(4), checkpoint_name(2)]


def test_a_store_that_fails_ends_no_training_but_is_told(
    context: StepContext, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server refuses from the start does end it."""
    saved(context, 1)
    with CheckpointCopies(context) as copies:
        monkeypatch.setattr(
            type(store), "upload", lambda *_: (_ for _ in ()).throw(OSError("down"))
        )
        copies.finish()
        assert [each["why"] for each in events(context, "checkpoint_not_copied")] == ["down"]
        assert copies.problem == f"checkpoints are not copied to {store.url}: down"
        monkeypatch.undo()
        copies.finish()
        assert not copies.problem
    assert lost_and_brought(context) == [checkpoint_name(1)]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    options = context.site.s3.model_copy(update={"connections": 3})
    site = context.site.model_copy(update={"s3": options})
    with (
        pytest.raises(StoreAccessError),
        CheckpointCopies(
            StepContext(folder=context.folder, spec=context.spec, recipe=context.recipe, site=site)
        ),
    ):
        pass


def test_the_end_of_a_step_does_not_wait_for_a_copy(context: StepContext, store: Store) -> None:
    """It is given up while the checksum is made, or while it is sent, and made by the next step."""
    saved(context, 1)
    copies = CheckpointCopies(context)
    copies.__exit__()
    with pytest.raises(InterruptedError):
        copies._send(store, checkpoint_name(1))
    assert list(store.list_files()) == []
    copied(context)
    assert lost_and_brought(context) == [checkpoint_name(1)]
