"""Profiles and traces in the folder of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.files.layout import RunFolder
from headrace.status.traces import traces_of

PERFETTO, MEMORY = "https://ui.perfetto.dev", "https://docs.pytorch.org/memory_viz"


@pytest.mark.parametrize(
    ("name", "opened_by"),
    [
        ("fit-0-1.pt.trace.json", PERFETTO),
        ("work/trace.json", PERFETTO),
        ("loggers/tensorboard/version_0/node_1.2.pt.trace.json.gz", PERFETTO),
        ("work/train.py.lprof", "python -m line_profiler -tmz"),
        ("work/out/step.prof", "python -m pstats"),
        ("work/step.pstats", "python -m pstats"),
        ("work/report1.nsys-rep", "nsys-ui"),
        ("work/gemm.ncu-rep", "ncu-ui"),
        ("work/memory_snapshot.pickle", MEMORY),
        ("work/vocabulary.pickle", None),
        ("recipe.json", None),
        ("trials/000001/out/trace.json", None),
        ("history/training.jsonl", None),
    ],
)
def test_a_profile_is_known_by_its_name(name: str, opened_by: str | None, tmp_path: Path):
    file = tmp_path / "a run" / name
    file.parent.mkdir(parents=True)
    file.touch()
    found = traces_of(RunFolder(tmp_path / "a run"))
    assert [each.path for each in found] == ([] if opened_by is None else [str(file)])
    assert all(each.opened_by.startswith(str(opened_by)) for each in found)
    assert all(each.opened_by.endswith(f"'{file}'") for each in found)


def test_a_run_without_a_folder_has_none(tmp_path: Path):
    assert traces_of(RunFolder(tmp_path / "gone")) == ()


def test_links_pipes_and_names_that_no_terminal_shows_are_left_out(tmp_path: Path):
    run = RunFolder(tmp_path / "run")
    (run.work / "a").mkdir(parents=True)
    (run.work / "a" / "[bold] trace {x}.json").touch()
    (run.work / "loop").symlink_to(".")
    (run.work / "root").symlink_to("/")
    (run.work / "trace_folder.json").mkdir()
    os.mkfifo(run.work / "trace_pipe.json")
    for name in (b"trace-\xfc.json", b"trace\x1b[31m.json", b"trace\n.json"):
        (run.work / os.fsdecode(name)).touch()
    (trace,) = traces_of(run)
    assert Path(trace.path).relative_to(run.work) == Path("a/[bold] trace {x}.json")
