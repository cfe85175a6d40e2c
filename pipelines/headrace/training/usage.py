"""How busy this node is: CPU and memory by psutil, GPUs by NVML where nvidia-ml-py is installed."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import psutil

from headrace.steps.history import UsageRow


class Usage:
    """Looks at this node and this process; figures are those since the look before.

    Args:
        node: Name of the node.
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self._process = psutil.Process()
        self._gpus = _Gpus.found()
        psutil.cpu_percent()
        self._process.cpu_percent()

    def look(self) -> UsageRow:
        """Take all figures; some 0.2 ms without GPUs."""
        gpus = {} if self._gpus is None else self._gpus.look()
        return UsageRow(
            at=time.time(),
            node=self._node,
            cpu=psutil.cpu_percent() / 100,
            rank_cpu=self._process.cpu_percent() / 100,
            rank_bytes=self._process.memory_info().rss,
            memory=psutil.virtual_memory().percent / 100,
            **gpus,
        )


class _Gpus:
    """All GPUs that NVML shows."""

    def __init__(self, nvml: ModuleType, handles: list[Any]) -> None:
        self._nvml, self._handles = nvml, handles

    @classmethod
    def found(cls) -> _Gpus | None:
        """Those of this node; None without any, without a driver, without nvidia-ml-py."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except pynvml.NVMLError:
            return None
        return cls(pynvml, handles) if handles else None

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
