"""What a kernel says of its processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.steps.node_facts import cpu_model


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: A CPU\n", "A CPU"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "0xd4f"),
        ("processor\t: 0\n", ""),
    ],
)
def test_the_model_on_each_processor(text: str, model: str, tmp_path: Path):
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_model(tmp_path / "cpuinfo") == model
    assert cpu_model(tmp_path / "missing") == ""
