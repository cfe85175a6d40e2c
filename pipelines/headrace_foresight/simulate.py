"""Simulation of work on machines that come and go, event by event: its time and cost.

A node waits in a queue, boots, serves trials on its GPUs, and is returned if no trial waits, at its
time limit, or at an interruption. Trials continue elsewhere from their last checkpoint. SimPy
(https://simpy.readthedocs.io) orders the events. A seed always gives the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.runs.prediction import LEVEL, Interval
from headrace_foresight.scenario import Outcome, Scenario, SimulatedJob
from headrace_foresight.simulated_nodes import SimulatedTrial, World
from headrace_foresight.simulated_sites import PlannedWorld

Draw = Callable[[np.random.Generator], Sequence[SimulatedJob]]


def repeated(
    draw: Draw, scenario: Scenario, repeats: int = 20, seed: int = 0
) -> dict[str, Interval]:
    """Return each figure of `Outcome` over repeats, with new random durations and interruptions.

    US dollars of a site have the name `usd SITE`.
    """
    outcomes = []
    for each in np.random.SeedSequence(seed).spawn(repeats):
        jobs, mishaps = map(np.random.default_rng, each.spawn(2))
        outcomes.append(simulate(draw(jobs), scenario, mishaps))
    sites = {f"usd {kind.site}": kind.site for kind in scenario.nodes}
    figures = [
        {**vars(each), **{name: each.usd_of.get(site, 0.0) for name, site in sites.items()}}
        for each in outcomes
    ]
    names = [name for name in figures[0] if name != "usd_of"]
    return {name: span([each[name] for each in figures]) for name in names}


def simulate(
    jobs: Sequence[SimulatedJob], scenario: Scenario, random: np.random.Generator
) -> Outcome:
    """Simulate a suite once.

    Raises:
        ValueError: There is no job, one needs more GPUs than any node has, or a node ends before a
            trial can have started on it.
    """
    most = max((kind.gpus for kind in scenario.nodes if kind.count), default=0)
    if not jobs or max(job.gpus for job in jobs) > most:
        raise ValueError(f"there must be trials, each with at most the GPUs of a node, {most}")
    if any(kind.walltime_s <= kind.boot_s + scenario.restart_s for kind in scenario.nodes):
        raise ValueError("a time limit must be longer than booting and the start of a trial")
    import simpy

    world_type = World if scenario.policy is None else PlannedWorld
    world = world_type(simpy.Environment(), scenario, random)
    for rank, job in enumerate(jobs):
        world.put(SimulatedTrial(job, rank, job.seconds))
    for kind in scenario.nodes:
        for _ in range(kind.count):
            world.env.process(world.place(kind))
    world.env.run()
    return world.outcome()


def span(values: Sequence[float]) -> Interval:
    """Return the mean of a figure's values, and their interval."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=float(low), mean=float(np.mean(values)), high=float(high))
