"""A suite over two sites of this machine, with its dataset packed; nothing runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.runs.runs import Run
from support.factories import write_site
from support.past_runs import step_ended
from support.runs import lease_on_disk, make_run
from support.staged_datasets import make_dataset

SITES = ("lab", "box")
DATASET = "digits-0123456789ab"


def write_sites(home: Path, **changes: Any) -> None:
    """Sites of this machine, each with a folder of its own."""
    for name in SITES:
        write_site(home, name, folder=str(home / name), **changes)


def packed_suite(home: Path, *overrides: str, **request: Any) -> Run:
    """A suite over both sites, whose dataset lies at the first one."""
    write_sites(home, prices={"usd_per_fetched_gb": 0.09})
    words = (*overrides, "suite.sites=[lab,box]", "suite.grid.seed=[1,2,3]")
    suite = make_run(**{"kind": "suite", "site": "lab", "overrides": words, **request})
    dataset = suite.site_folder.datasets / DATASET
    if not dataset.exists():
        make_dataset(dataset)
    outputs = {"dataset": str(dataset), "fingerprint": "f", "num_bytes": 1_200_000}
    step_ended(suite, "pack", lease_on_disk(suite), 1.0, outputs=outputs, number=1)
    return suite
