"""Which checkpoints training can go back to when a node finds damage in its data."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.errors import DataError, WorkerLostError
from headrace.files.atomic import read_record, write_record
from headrace.files.layout import RunFolder, checkpoint_name
from headrace.training import checkpoints, data_watch
from headrace.training.data_watch import (
    DamagedData,
    DataWatch,
    Round,
    Rounds,
    mark_damaged,
    spared_steps,
)
from headrace.training.gang import Gang
from headrace.training.records import LaunchFolder, NodeLaunch
from support.scripted_fleet import ScriptedFleet
from support.shards import write_dataset
from support.training import make_context, make_recipe, make_site
from support.waiting import wait_until


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(data_watch, "_LOOK_S", 0.0)
    made = RunFolder(tmp_path / "run")
    made.checkpoints.mkdir(parents=True)
    return made


@pytest.fixture
def launch(tmp_path: Path) -> LaunchFolder:
    made = LaunchFolder(tmp_path / "launch-001")
    made.path.mkdir()
    return made


def save(run: RunFolder, *steps: int) -> None:
    for step in steps:
        (run.checkpoints / checkpoint_name(step)).touch()


def steps_in(run: RunFolder) -> list[int | None]:
    return [checkpoints.step_of(path) for path in checkpoints.newest_first(run.checkpoints)]


def answer(launch: LaunchFolder, *nodes: int) -> None:
    asked = read_record(launch.round, Round)
    assert asked is not None
    for index in nodes:
        write_record(launch.sound(index), asked)


def test_a_checkpoint_is_sound_when_all_nodes_have_looked_since_it_was_written(run, launch):
    save(run, 6)
    driver = Rounds(run)
    driver.begin(launch, 2, str(run.checkpoints / checkpoint_name(6)))
    assert set(spared_steps(run)) == {0, 6}
    answer(launch, 0)
    driver.look()
    assert driver.sound_step == 0
    answer(launch, 1)
    driver.look()
    assert driver.sound_step == 6
    assert Rounds(run).sound_step == 6  # also for the next attempt


def test_rounds_follow_one_another_with_rests(run, launch, monkeypatch):
    driver = Rounds(run)
    driver.begin(launch, 1, None)
    save(run, 9)
    answer(launch, 0)
    driver.look()
    driver.look()
    assert read_record(launch.round, Round) == Round(number=1, step=0)  # rests
    monkeypatch.setattr(data_watch, "LEAST_REST_S", 0.0)
    monkeypatch.setattr(data_watch, "_REST_PER_LOOK", 0)
    other = Rounds(run)
    other.begin(launch, 1, None)
    answer(launch, 0)
    other.look()
    other.look()
    assert read_record(launch.round, Round) == Round(number=2, step=9)
    assert set(spared_steps(run)) == {0, 9}
    other.look()
    assert other.sound_step == 0  # nobody has answered the second one
    answer(launch, 0)
    other.look()
    assert other.sound_step == 9


def test_a_mark_takes_away_what_is_further_than_the_sound_checkpoint(run, launch):
    save(run, 3, 6)
    driver = Rounds(run)
    driver.begin(launch, 1, str(run.checkpoints / checkpoint_name(6)))
    answer(launch, 0)
    driver.look()
    save(run, 9, 12)
    (run.checkpoints / checkpoints.FINAL).touch()
    damaged = DamagedData(node="n1", files=("shards/train-00000.h5",))
    mark_damaged(run, damaged)
    later = Rounds(run)  # the first driver died
    assert later.settle(goes_back=True) == (damaged,)
    assert steps_in(run) == [6, 3]
    assert not (run.checkpoints / checkpoints.FINAL).exists()
    assert later.settle(goes_back=True) == ()


def test_what_training_may_go_back_to_is_not_pruned(run):
    save(run, 3, 6, 9, 12)
    checkpoints.prune(run.checkpoints, 1, (0, 7))
    assert steps_in(run) == [12, 6]
    checkpoints.prune(run.checkpoints, 1, (0, 7))
    assert steps_in(run) == [12, 6]
    checkpoints.prune(run.checkpoints, 1)
    assert steps_in(run) == [12]


@pytest.mark.parametrize("script", [None, "script.py"])
def test_damage_that_an_earlier_driver_has_not_seen_is_settled_first(tmp_path, script):
    """Scripts know their own checkpoints, so only their writer can say which are good."""
    part = {"model": {"_target_": "a.B"}} if script is None else {"train": {"script": script}}
    context = make_context(tmp_path, make_recipe(part), make_site(tmp_path))
    run = context.run_folder
    run.checkpoints.mkdir()
    save(run, 3)
    mark_damaged(run, DamagedData(node="n1", files=("shards/train-00000.h5",)))
    fleet = ScriptedFleet(None)
    gang = Gang(context, fleet, (1, 1), str(tmp_path), lambda _: None)
    if script is not None:
        with pytest.raises(DataError, match=r"n1: shards/train-00000\.h5(.|\n)*Remove those of"):
            gang.run()
        assert (steps_in(run), fleet.launches) == ([3], [])
        return
    assert gang.run() == []
    assert [launch.resume for launch in fleet.launches] == [None]
    assert "damaged_data" in context.folder.events.read_text()


def test_damage_and_what_it_broke_are_told_as_one_cause(tmp_path):
    """The launch that found it ended as if its ranks had crashed, and is counted once."""
    context = make_context(
        tmp_path, make_recipe({"model": {"_target_": "a.B"}}), make_site(tmp_path)
    )

    class Damaging(ScriptedFleet):
        def on_nodes(self, *arguments, **options):
            if not self.launches:
                mark_damaged(context.run_folder, DamagedData(node="n1", files=("x.h5",)))
            return super().on_nodes(*arguments, **options)

    fleet = Damaging(WorkerLostError("Rank 1: ended by signal SIGBUS"), None)
    [cause] = Gang(context, fleet, (1, 1), str(tmp_path), lambda _: None).run()
    assert cause == (
        "Staged shards changed after they were verified (n1: x.h5); "
        "Rank 1: ended by signal SIGBUS; training goes back to the start"
    )
    assert context.restarts == [cause]


@pytest.mark.parametrize("is_fresh", [True, False])
def test_a_node_that_mended_what_it_has_trained_on_passes_no_round(run, tmp_path, is_fresh):
    """Although all is right again: the newest checkpoint comes from what it was before."""
    save(run, 24)
    here = NodeLaunch(
        run_folder=str(run.path), step_folder=str(tmp_path / "step"), dataset="d",
        number=1, node_index=0, node_name="node-0", num_nodes=1, ranks_per_node=1,
        host="127.0.0.1", master_address="127.0.0.1", master_port=0, resume="r",
    )  # fmt: skip
    here.folder.path.mkdir(parents=True)
    driver = Rounds(run)
    driver.begin(here.folder, 1, str(run.checkpoints / checkpoint_name(24)))
    manifest = write_dataset(tmp_path / "copy", {"label": np.arange(8)}, splits={"train": 8})
    mended = frozenset({manifest.shards[0].file})
    data = SimpleNamespace(
        folder=tmp_path / "copy", is_fresh=is_fresh, mended=mended, is_whole=True
    )
    told = here.folder.stop, here.folder.sound(0)
    with DataWatch(here, data, manifest, enabled=True) as watch:
        wait_until(lambda: any(file.exists() for file in told), 90, "the node to say something")
        driver.look()
        assert not watch.keep_on()
    assert driver.sound_step == 0
    (damaged,) = driver.settle(goes_back=True)
    assert damaged.files == (manifest.shards[0].file,)
    assert steps_in(run) == []
