"""Processes of a node that run a model; all are forked from one with the imports that they need.

It names modules of higher layers as texts, as `headrace.steps.run` does.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType

from headrace.processes.children import Child, Process
from headrace.processes.fork_server import ForkServers
from headrace.processes.identity import CPUS, MEMORY, tell_children
from headrace.processes.working_folder import python_module as python_module
from headrace.recipe.site import Role

_MODULE = "headrace.steps.model_process"
_IMPORTED = ("headrace.training.rank", "headrace.evaluation.predict", "omegaconf")
"""Lightning uses the last for hyperparameters, at the first checkpoint."""

VARYING = frozenset(
    (
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME",
        "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", CPUS, MEMORY,
    )
)  # fmt: skip
"""Variables that give a rank its number, network and part of the node; no import depends on them,
except Lightning's `rank_zero_only`."""

_SERVERS = ForkServers(_MODULE, VARYING, imported=(_MODULE,))
"""Shared by all trainings and evaluations on this node: restarts and next steps import nothing."""


def dask_setup(worker: object) -> None:
    """Start the imports when a worker starts; Dask calls this for a lease's `preload` modules."""
    del worker
    tell_children()
    _SERVERS.warm_up()


def start_forked(child: Child) -> Process:
    """Start the command of `python_module` as a fork that calls the module's `main(arguments)`."""
    return _SERVERS.start(child)


def model_environment(role: Role) -> dict[str, str]:
    """Return environment variables of a process that runs a model, besides the worker's."""
    return {**role.env, "OMP_NUM_THREADS": str(role.threads_per_rank)}


class _ScipySignal(ModuleType):
    """Replaces `scipy.signal` until an attribute of it is used.

    torchmetrics imports it to check for `hamming`: a tenth of the time of all imports.
    """

    hamming = None

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        self.leave()
        return getattr(importlib.import_module(self.__name__), name)

    def leave(self) -> None:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


@cache
def load() -> None:
    """Import what the processes need, once: in their server, or in its zygote."""
    stand_in = _ScipySignal("scipy.signal")
    sys.modules[stand_in.__name__] = stand_in
    for module in _IMPORTED:
        importlib.import_module(module)
    stand_in.leave()
