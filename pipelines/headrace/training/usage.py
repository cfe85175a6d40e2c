"""How busy a node and its ranks are: by psutil, GPUs by NVML where nvidia-ml-py is installed."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import psutil
import torch

from headrace.clusters.gpus import handles
from headrace.steps.history import RankRow, UsageRow


class Usage:
    """Looks at this node; figures are those since the look before.

    Args:
        node: Name of the node.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        found = handles()
        self._gpus = None if found is None else _Gpus(*found)
        self._traffic = _Traffic()
        psutil.cpu_percent()

    def look(self) -> UsageRow:
        """Take all figures; see `docs/how-to/watch-training.md` for what that takes."""
        gpus = {} if self._gpus is None else self._gpus.look()
        return UsageRow(
            at=time.time(),
            node=self._node,
            cpu=psutil.cpu_percent() / 100,
            memory=psutil.virtual_memory().percent / 100,
            **self._traffic.look(),
            **gpus,
        )


class RankUsage:
    """Looks at this process, which is a rank; figures are those since the look before."""

    def __init__(self, rank: int, node: str) -> None:
        self._rank, self._node = rank, node
        self._process = psutil.Process()
        self._process.cpu_percent()

    def look(self) -> RankRow:
        """Take all figures."""
        has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return RankRow(
            at=time.time(),
            rank=self._rank,
            node=self._node,
            cores=self._process.cpu_percent() / 100,
            rss_bytes=self._process.memory_info().rss,
            gpu_bytes=torch.cuda.memory_reserved() if has_gpu else None,
            gpu_peak_bytes=torch.cuda.max_memory_allocated() if has_gpu else None,
        )


class _Traffic:
    """Bytes a second of all disks, and of the network without the loopback."""

    def __init__(self) -> None:
        self._at_s, self._before = time.monotonic(), _moved_bytes()

    def look(self) -> dict[str, float]:
        now_s, now = time.monotonic(), _moved_bytes()
        seconds, before = max(now_s - self._at_s, 1e-9), self._before
        self._at_s, self._before = now_s, now
        return {
            f"{name}_bytes_per_s": max(count - before[name], 0) / seconds
            for name, count in now.items()
            if name in before
        }


def _moved_bytes() -> dict[str, int]:
    """Bytes so far; without those of disks where there are none, as in some containers."""
    links = psutil.net_io_counters(pernic=True)
    others = [counts for name, counts in links.items() if name != "lo"]
    disks = psutil.disk_io_counters()
    moved = {
        "network_in": sum(each.bytes_recv for each in others),
        "network_out": sum(each.bytes_sent for each in others),
    }
    if disks is not None:
        moved |= {"disk_read": disks.read_bytes, "disk_write": disks.write_bytes}
    return moved


class _Gpus:
    """The GPUs that this process may use, as NVML shows them."""

    def __init__(self, nvml: ModuleType, handles: list[Any]) -> None:
        self._nvml, self._handles = nvml, handles

    def look(self) -> dict[str, float]:
        """Use and memory as shares, power in watts; what a device does not tell is left out."""
        nvml = self._nvml
        try:
            rates = [nvml.nvmlDeviceGetUtilizationRates(each).gpu for each in self._handles]
            memory = [nvml.nvmlDeviceGetMemoryInfo(each) for each in self._handles]
            power = [nvml.nvmlDeviceGetPowerUsage(each) for each in self._handles]
        except nvml.NVMLError:
            return {}
        return {
            "gpu": sum(rates) / len(rates) / 100,
            "gpu_memory": sum(each.used for each in memory) / sum(each.total for each in memory),
            "gpu_power_w": sum(power) / 1000,
        }
