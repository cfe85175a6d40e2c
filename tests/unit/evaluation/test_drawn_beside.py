"""Figures of a training are drawn by a fork of the process that evaluates."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.evaluation import predict

_HERE = os.getpid()


def _draw(step_folder: str, variant: int, checkpoint: str) -> dict[str, bytes]:
    if checkpoint == "kills" and os.getpid() != _HERE:
        os.kill(os.getpid(), signal.SIGKILL)
    return {f"{step_folder} {variant}": b"here" if os.getpid() == _HERE else b"beside"}


@pytest.mark.parametrize(("checkpoint", "where"), [("", b"beside"), ("kills", b"here")])
def test_figures_come_from_a_fork_or_are_drawn_here_when_it_was_killed(
    monkeypatch: pytest.MonkeyPatch, checkpoint: str, where: bytes
) -> None:
    monkeypatch.setattr(predict, "draw_training", _draw)
    figures = predict._drawn.__wrapped__("steps/000003", 1, checkpoint)
    assert figures() == {"steps/000003 1": where}
