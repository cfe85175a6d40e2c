"""Progress of the nodes, and stopping when nobody waits."""

import pytest

from headrace.errors import StepCancelledError
from headrace.staging.stage_step import Ticker, total_done_bytes


def test_bytes_of_all_nodes_add_up(tmp_path):
    files = [tmp_path / f"node-{index}.json" for index in range(3)]
    assert total_done_bytes(files) == 0
    Ticker(files[0])(10, 100)
    Ticker(files[2])(32, 100)
    assert total_done_bytes(files) == 42


def test_written_seldom_but_always_at_the_end(tmp_path):
    file = tmp_path / "node.json"
    tick = Ticker(file)
    tick(1, 100)
    tick(2, 100)
    assert total_done_bytes([file]) == 1
    tick(100, 100)
    assert total_done_bytes([file]) == 100


def test_stops_when_nobody_waits(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.staging.stage_step.wanted", lambda: False)
    with pytest.raises(StepCancelledError):
        Ticker(tmp_path / "node.json")(1, 100)
