from __future__ import annotations

import pytest

from headrace.batch.slurm import node_names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("None assigned", []),
        ("(null)", []),
        ("login", ["login"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("a1,gpu[01-03,7],b", ["a1", "gpu01", "gpu02", "gpu03", "gpu7", "b"]),
        ("rack[1-2]-ib", ["rack1-ib", "rack2-ib"]),
        ("c[08-10]", ["c08", "c09", "c10"]),
    ],
)
def test_short_forms(text: str, names: list[str]):
    assert node_names(text) == names
