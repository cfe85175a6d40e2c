"""What headrace tells of GPUs is what `nvidia-smi` tells, while they work."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from headrace.clusters.gpus import visible_gpus
from headrace.steps.history import NodeRow
from headrace.training.history_writer import RankUsage, Usage
from support.waiting import wait_until

pytestmark = pytest.mark.gpu
Record = Callable[[str, object], None]
QUERY = "uuid,utilization.gpu,memory.used,memory.total,power.draw"


def smi(*arguments: str) -> str:
    if shutil.which("nvidia-smi") is None:
        pytest.skip("there is no nvidia-smi")
    command = ["nvidia-smi", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def parts_of_gpus() -> list[str]:
    """Lines of `nvidia-smi -L` that name parts of GPUs."""
    return [line for line in smi("-L").splitlines() if line.lstrip().startswith("MIG ")]


@pytest.fixture
def at_work() -> Iterator[None]:
    """Every GPU multiplies matrices meanwhile."""
    over = threading.Event()

    def work(number: int) -> None:
        left = torch.rand(4096, 4096, device=f"cuda:{number}")
        while not over.is_set():
            left = torch.mm(left, left).clamp_(0, 1)
            torch.cuda.synchronize(number)

    numbers = range(torch.cuda.device_count())
    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def test_samples_by_nvml_are_those_of_nvidia_smi(at_work, record_property: Record) -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: no samples of GPUs")
    if parts_of_gpus():
        pytest.skip("NVML tells no use of parts of a GPU (MIG)")
    usage = Usage("here")
    rows: list[NodeRow] = []

    def is_busy() -> bool:
        rows.append(usage.look())
        return rows[-1].gpu is not None and rows[-1].gpu > 0.9

    wait_until(is_busy, 20, "the GPUs to be told as busy")
    ours = rows[-1]
    uuids = {gpu.uuid for gpu in visible_gpus()[1]}
    answer = smi(f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
    told = [line.split(", ") for line in answer.strip().splitlines()]
    use, used, total, power = (
        sum(float(line[place]) for line in told if line[0] in uuids) for place in range(1, 5)
    )
    assert ours.gpu == pytest.approx(use / len(uuids) / 100, abs=0.25)
    assert ours.gpu_memory == pytest.approx(used / total, abs=0.02)
    assert ours.gpu_power_w == pytest.approx(power, rel=0.25)
    record_property("told", f"use {ours.gpu:.2f}, memory {ours.gpu_memory:.3f}, "
                            f"{ours.gpu_power_w:.0f} W")  # fmt: skip


def test_a_rank_tells_the_memory_that_pytorch_holds() -> None:
    held = torch.zeros(2**20, device="cuda")
    row = RankUsage(0, "here").look()
    assert row.gpu_bytes == torch.cuda.memory_reserved()
    assert row.gpu_peak_bytes is not None
    assert row.gpu_peak_bytes >= held.nbytes


def test_parts_of_a_gpu_are_given_out_by_their_uuids(record_property: Record) -> None:
    parts = parts_of_gpus()
    record_property("told", f"MIG is on: {len(parts)} parts" if parts else "MIG is off")
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: parts are not told")
    _, gpus = visible_gpus()
    listed = "\n".join(parts or smi("-L").splitlines())
    assert [gpu.name for gpu in gpus if gpu.uuid not in listed] == []
    assert all(gpu.name.startswith("MIG-") for gpu in gpus) or not parts
