"""Parts of the GPU check: the pre-flight, `headrace probe` on GPUs, trials that share a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from headrace.clusters import preflight
from headrace.clusters.lease_records import LeaseSpec
from headrace.files.layout import SiteFolder
from headrace.files.locks import locked
from headrace.processes.identity import ProcessIdentity
from headrace.recipe.load import parse
from headrace.recipe.site import Site
from headrace_bench.gpu_rows import Rows, confirmed
from headrace_bench.gpu_trainings import num_ranks
from headrace_bench.machine import num_cores
from headrace_bench.suite import made_home, sweep_s
from headrace_probes.on_node import NodeJob, measure_here
from headrace_probes.probe_records import Measurement, Part, ProbeOptions, ProbeRequest

_TRIALS, _TOGETHER = 16, 4
_TRIAL = """
import time
from pathlib import Path
import torch

def square(x):
    folder = Path(__file__).parent / "begun"
    folder.mkdir(exist_ok=True)
    (folder / str(x)).touch()
    ends_at = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2:  # another trial has to run at the same time
        if time.monotonic() > ends_at:
            raise TimeoutError("no other trial runs at the same time")
        time.sleep(0.05)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {"loss": float(torch.tensor(float(x), device=device).square())}
"""


def preflights(folder: Path) -> Rows:
    """Run the pre-flight of two nodes, both on this machine: GPUs, and the all-reduce."""
    count = torch.cuda.device_count()
    batch = {"preflight": "full", "gpus_per_node": count}
    role = {"backend": "slurm", "kind": "gang", "nodes": 2, "batch": batch}
    content: dict[str, Any] = {"name": "bench", "folder": str(folder), "roles": {"gpu": role}}
    content["tiers"] = [{"name": "bench", "folder": str(folder / "tier"), "reserve": 0}]
    site, lease = parse(Site, content, "the check"), SiteFolder(folder).lease("bench")
    spec = LeaseSpec(
        lease_id="bench", key="bench/gpu", run_id="bench", role_name="gpu", role=site.roles["gpu"],
        lost_after_s=60.0, owner=ProcessIdentity.of(),
    )  # fmt: skip
    lease.preflight.mkdir(parents=True)
    preflight.offer_meeting(lease, "127.0.0.1")
    handle = locked(lease.lock)
    try:
        with ThreadPoolExecutor(2) as pool:
            reports = list(pool.map(lambda index: preflight.examine(lease, spec, index), range(2)))
    finally:
        os.close(handle)
    problems = [problem for each in reports for problem in each.problems]
    names = [check.name for check in reports[0].checks]
    problems += [] if "all-reduce" in names else ["there was no all-reduce"]
    if count and not preflight.missing_gpus(count + 1):
        problems.append(f"{count + 1} GPUs are found, one too many")
    return (confirmed("preflight", f"{count} GPUs; {', '.join(names)}", problems),)


def probe(folder: Path) -> Rows:
    """Measure what `headrace probe` does on GPUs: products, memory, messages, training."""
    ranks = num_ranks()
    parts: dict[Part, int] = {"gemm": 1, "memory": 1, "network": max(ranks, 2), "train": ranks}
    found = [each for part in parts.items() for each in _measured(folder, *part)]
    problems = [f"{each.title}: {each.values}" for each in found if not min(each.values) > 0]
    if torch.cuda.is_available():
        named = [f"{each.title}, {each.settings}" for each in found]
        wanted = [("gemm", "cuda:0"), ("memory", "cuda:0"), ("train", "GPU a rank")]
        wanted += [("network", "nccl")] if ranks > 1 else []
        problems += [
            f"{part} has no figure of {what}"
            for part, what in wanted
            if not any(name.startswith(part) and what in name for name in named)
        ]
    best = max((each for each in found if each.part == "gemm"), key=lambda each: max(each.values))
    limit = f" of {best.limit:,.0f}" if best.limit else ""
    finding = f"{len(found)} figures; {best.name}: {max(best.values):,.0f}{limit} {best.unit}"
    return (confirmed("probe", finding, problems),)


def _measured(folder: Path, part: Part, ranks: int) -> Iterator[Measurement]:
    quick = part in ("memory", "network") or not torch.cuda.is_available()
    options = ProbeOptions(only=(part,), quick=quick)
    cores = max(num_cores() // ranks, 1)
    requests = tuple(
        ProbeRequest(
            part=part, options=options, node="here", cores=cores, rank=rank, local_rank=rank,
            ranks_per_node=ranks, world_size=ranks, meeting=str(folder / f"meeting-{part}"),
            host="127.0.0.1",
        )
        for rank in range(ranks)
    )  # fmt: skip
    env = {"OMP_NUM_THREADS": str(cores)}
    job = NodeJob(requests=requests, folder=str(folder), label=part, env=env, logs=str(folder))
    yield from measure_here(job).findings.measurements


def trials(folder: Path) -> Rows:
    """Run a suite of small trials, some at the same time on each GPU, or on the CPU."""
    del folder
    suite = {"trials_per_gpu": _TOGETHER, "trials_per_node": min(_TOGETHER, num_cores())}
    with made_home() as home:
        seconds = sweep_s(Path(home), _TRIALS, 1, suite, _TRIAL)
    where = f"{_TOGETHER} at once on each GPU" if torch.cuda.is_available() else "on the CPU"
    finding = f"{_TRIALS} trials in {seconds:.1f} s, {where}"
    return (confirmed("trials", finding, []),)
