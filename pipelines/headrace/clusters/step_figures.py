"""Status of a lease's steps for Prometheus, beside Dask's own metrics of the host process."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any

from headrace.files.atomic import is_there, read_bytes
from headrace.files.layout import LeaseFolder


def publish_steps(folder: LeaseFolder) -> None:
    """Export the steps of a lease, if `prometheus-client` is installed (`headrace[prometheus]`)."""
    if find_spec("prometheus_client") is None:
        return
    from prometheus_client import REGISTRY

    REGISTRY.register(StepFigures(folder))


class StepFigures:
    """A collector of `prometheus_client`: status of a lease's running steps."""

    def __init__(self, folder: LeaseFolder) -> None:
        self._folder = folder

    def describe(self) -> Iterable[Any]:
        """Return nothing: the metrics are not known in advance."""
        return ()

    def collect(self) -> Iterator[Any]:
        """Yield gauges, labelled with run and step; each step has its own units, see its status."""
        from prometheus_client.core import GaugeMetricFamily

        def gauge(name: str, meaning: str, *labels: str) -> Any:
            every = ("run", "step", *labels)
            return GaugeMetricFamily(f"headrace_step_{name}", meaning, labels=every)

        done = gauge("done", "Units of work that are done", "unit")
        total = gauge("total", "Units of work in all", "unit")
        left = gauge("eta_seconds", "Time until the end of the step")
        figure = gauge("metric", "Newest value of a metric", "metric")
        for spec, status in self._running():
            of, progress = (spec["run_id"], spec["name"]), status["progress"]
            done.add_metric((*of, progress["unit"]), progress["done"])
            if progress["total"] is not None:
                total.add_metric((*of, progress["unit"]), progress["total"])
            if status["eta_s"] is not None:
                left.add_metric(of, status["eta_s"])
            for name, value in status["metrics"].items():
                figure.add_metric((*of, name), value)
        yield from (done, total, left, figure)

    def _running(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield specs and statuses, as `headrace.steps` writes them."""
        for number in itertools.count(1):
            step = self._folder.step(number)
            if not is_there(step.path):
                return
            spec, status = read_bytes(step.spec), read_bytes(step.status)
            if spec and status and not is_there(step.result) and not is_there(step.exit):
                yield json.loads(spec), json.loads(status)
