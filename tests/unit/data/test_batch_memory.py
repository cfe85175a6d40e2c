"""Memory for batches: what staging leaves free for them, and that /dev/shm is not needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.batch_memory import batch_bytes, sample_bytes
from headrace.files.manifest import FieldInfo, Manifest
from headrace.recipe.site import Role
from headrace.training.training_plan import plan_training
from support.training import make_recipe

FIELDS = (
    FieldInfo(name="image", dtype="uint8", shape=(8, 8), layout="fixed"),
    FieldInfo(name="label", dtype="int64", layout="fixed"),
)
SAMPLES = Manifest(
    name="d", fingerprint="f", pack_key="k", fields=FIELDS, splits={"train": 10**6}, shards=()
)


def needed(nodes: int, ranks: int, share: int, accumulate: int = 1, **data: object) -> int:
    content = {
        "model": {"_target_": "a.B"},
        "data": {
            "global_batch_size": share * nodes * ranks * accumulate,
            "sample_transforms": [{"_target_": "a.C"}],
            **data,
        },
        "trainer": {"accumulate_grad_batches": accumulate},
    }
    recipe, role = make_recipe(content), Role(nodes=nodes, ranks_per_node=ranks)
    found = batch_bytes(recipe, role, SAMPLES)
    assert found == ranks * plan_training(recipe, role, SAMPLES).batch_bytes
    return found


@given(
    nodes=st.integers(1, 9),
    ranks=st.integers(1, 9),
    share=st.integers(1, 99),
    accumulate=st.integers(1, 4),
    prefetch=st.integers(0, 64),
    workers=st.one_of(st.just("auto"), st.integers(0, 16)),
)
def test_room_is_that_of_all_batches_at_once(nodes, ranks, share, accumulate, prefetch, workers):
    """A batch in use and those ahead, of each rank of the node; other nodes do not count."""
    found = needed(nodes, ranks, share, accumulate, prefetch=prefetch, workers=workers)
    batch = share * sample_bytes(SAMPLES)
    ahead = max(prefetch, 3 * workers if workers != "auto" else 0)
    assert found % (ranks * batch) == 0
    assert found // (ranks * batch) >= max(3, ahead - 1)
    assert found == needed(1, ranks, share, prefetch=prefetch, workers=workers)


def test_other_loaders_count_as_nothing():
    script = make_recipe({"train": {"script": "a.py"}})
    assert batch_bytes(script, Role(nodes=1, ranks_per_node=8), SAMPLES) == 0


_READ = """
import sys, torch
from pathlib import Path
from headrace.data.dataset import Reading
from headrace.data.loaders import Loaders
from support.loaders import NAMED, settings_of_ranks

class Large:
    def __call__(self, sample, generator):
        return {**sample, "large": torch.full((2**18,), sample["label"])}

if __name__ == "__main__":
    keys = {"batch": 4, "seed": 0, "sample_transforms": (NAMED,), "shuffle": False}
    for settings in settings_of_ranks(
        Path(sys.argv[1]), 1, workers=2, reading=Reading(transforms=(Large(),)), **keys
    ):
        train = Loaders(settings).train
        batches = [batch["large"] for batch in train]
        print(train.notes["batches"], [each[:, -1].tolist() for each in batches], flush=True)
    rows = [torch.full((2**18,), number) for number in range(8)]
    for batch in torch.utils.data.DataLoader(rows, batch_size=4, num_workers=2):
        print("torch's", batch[:, -1].tolist())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small /dev/shm takes root")
def test_worker_processes_need_no_room_in_dev_shm(tmp_path: Path):
    """Containers have 64 MiB there; here 64 KiB, which torch's own loader fails in."""
    from support.shards import write_fields

    def add(writer, ids: np.ndarray) -> None:
        writer.add_fixed("label", ids.astype(np.int64))

    write_fields(tmp_path / "data", FIELDS[1:], add, splits={"train": 8}, shard_samples=4)
    (tmp_path / "read.py").write_text(_READ)
    small = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", small, "sh", sys.executable, "read.py", "data"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    expected = "made by 2 processes [[0, 1, 2, 3], [4, 5, 6, 7]]"
    assert done.stdout.splitlines() == [expected], done.stderr
    assert "shared memory" in done.stderr
