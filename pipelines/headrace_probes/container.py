"""Time that Python takes to start in the site's container, and without it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from headrace.clusters.containers import in_container, python_of
from headrace.clusters.lease_records import LeaseSpec
from headrace.clusters.preflight import problem_of
from headrace.files.layout import LeaseFolder
from headrace.processes.working_folder import SAFE
from headrace_probes.probe_records import Findings, Measurement, ProbeOptions

_PROGRAMS = {"python -c pass": f"{SAFE}pass", "import torch": f"{SAFE}import torch"}
_TIMEOUT_S = 120.0


def measure(
    folder: LeaseFolder, spec: LeaseSpec, options: ProbeOptions, check: Callable[[], None]
) -> Findings:
    """Measure the seconds of each program, on this process's machine, outside of containers."""
    node, notes = os.uname().nodename, []
    ways: dict[str, Callable[[str], Sequence[str]]] = {
        "bare": lambda code: (sys.executable, "-c", code)
    }
    container = spec.role.batch.container
    if container is None or container.runtime == "none":
        notes.append("container: the role has none")
    else:
        ways[container.runtime] = lambda code: in_container(folder, spec, ("-c", code))
    found = []
    for way, command in ways.items():
        for name, code in _PROGRAMS.items():
            values, why_not = _timed(command(code), options.repeats, check)
            if why_not:
                notes.append(f"container: {name}, {way}, on {node}: {why_not}")
                continue
            found.append(
                Measurement(
                    part="container",
                    name=f"{name}, {way}",
                    settings=python_of(container, sys.executable) if way != "bare" else "python",
                    unit="s",
                    values=values,
                    lower_is_better=True,
                    node=node,
                )
            )
    return Findings(measurements=tuple(found), notes=tuple(notes))


def _timed(
    command: Sequence[str], repeats: int, check: Callable[[], None]
) -> tuple[tuple[float, ...], str]:
    """Return the seconds of each repeat without a first one; or why there are none."""
    seconds = []
    for _ in range(repeats + 1):
        check()
        start = time.perf_counter()
        if problem := problem_of(command, _TIMEOUT_S):
            return (), problem
        seconds.append(time.perf_counter() - start)
    return tuple(seconds[1:]), ""
