"""Runs and steps as texts: results, costs, load, and predictions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from headrace.cli.console import amount, duration, hundredths
from headrace.states import StepState

if TYPE_CHECKING:  # modules with such records have imported these
    from headrace.ledger.trial_rows import TrialRecord
    from headrace.runs.costs import Cost, CostLine
    from headrace.runs.prediction import Ahead
    from headrace.runs.site_machines import MostCost
    from headrace.status.lease import LeaseView
    from headrace.status.run import RunView
    from headrace.status.step import AttemptView, StepView
    from headrace.steps.history import NodeLoad, NodeRow

ABANDONED = "abandoned: its process has ended"
"""State of a run or suite without a process that drives it."""

_STYLES = {
    "succeeded": "green",
    "pruned": "blue",
    "running": "cyan",
    "queued": "yellow",
    "cancelled": "magenta",
}

_MAX_NODES = 4


def styled(state: str, more: str = "", shown: str = "") -> Text:
    """Return a state of a run, step or trial, or other words for it, in its colour."""
    return Text((shown or state) + more, style=_STYLES.get(state, "red"))


def heading(view: RunView, state: Text, *more: str) -> Text:
    """Return what a run or suite is and its state, in a line."""
    where = f" · {view.recipe} on {view.site} · "
    return Text.assemble((view.run_id, "bold"), where, state, *more)


def took_words(row: AttemptView | TrialRecord) -> str:
    """Return how long an attempt or a trial has taken so far; empty before it began."""
    if row.started_at is None:
        return ""
    return duration((row.finished_at or time.time()) - row.started_at)


def result_line(step: StepView) -> str:
    """Return the result of a step as a short text."""
    if step.state is not StepState.SUCCEEDED:
        return ""  # `print_failures` shows why
    if step.name == "evaluate" or (step.name == "train" and "steps" not in step.outputs):
        return _evaluated(step.outputs)
    if step.name == "stage":
        return _staged(step.outputs)
    if step.name == "train":
        return _trained(step.outputs)
    if step.name == "suite":
        return _tried(step.outputs)
    return _packed(step.outputs) if step.name == "pack" else ""


def _tried(outputs: Mapping[str, object]) -> str:
    counts = outputs.get("counts")
    parts = (
        [f"{number} {state}" for state, number in counts.items()]
        if isinstance(counts, dict)
        else []
    )
    best, value = outputs.get("best"), outputs.get("best_value")
    parts += [f"best is trial {best}: {value:.6g}"] if isinstance(value, float) else []
    return ", ".join(parts)


def _evaluated(outputs: Mapping[str, object]) -> str:
    """Return the first metrics; for several checkpoints or splits, a line for each."""
    also = outputs.get("also")
    others = [each for each in also if isinstance(each, dict)] if isinstance(also, list) else []
    lines = []
    for each in (outputs, *others):
        metrics = each.get("metrics")
        found = metrics.items() if isinstance(metrics, dict) else ()
        shown = [f"{key} {value:.4f}" for key, value in found if isinstance(value, float)]
        what = f"{each.get('split')}, {Path(str(each.get('evaluated'))).stem}: " if others else ""
        lines.append(what + ", ".join(shown[:3]))
    return "\n".join(lines)


def _packed(outputs: Mapping[str, object]) -> str:
    num_samples, num_left_out = outputs.get("num_samples"), outputs.get("num_quarantined")
    parts = [f"{amount(num_samples)} samples"] if isinstance(num_samples, (int, float)) else []
    if isinstance(num_left_out, int) and num_left_out:
        parts.append(f"{num_left_out:,} more in quarantine (headrace inspect shows why)")
    parts += ["reused"] if outputs.get("reused") is True else []
    problems = outputs.get("passed_over")
    if isinstance(problems, list):
        parts += [f"a new dataset, although pack.append is set: {problem}" for problem in problems]
    notes = outputs.get("notes")
    return "\n".join((", ".join(parts), *(map(str, notes) if isinstance(notes, list) else ())))


def _trained(outputs: Mapping[str, object]) -> str:
    steps, left_out = outputs.get("steps"), outputs.get("skipped_samples")
    parts = [f"{amount(steps)} steps"] if isinstance(steps, (int, float)) and steps else []
    source = outputs.get("metrics_from")
    parts += [f"metrics from {source}"] if source else []
    if isinstance(left_out, int):
        shards = outputs.get("skipped_shards")
        num_shards = len(shards) if isinstance(shards, list) else 0
        parts.append(f"without {left_out} samples of {num_shards} damaged shards")
    streamed = outputs.get("streamed")
    nodes = list(streamed.values()) if isinstance(streamed, dict) else []
    for key, place in (("peer_bytes", "other nodes"), ("source_bytes", "the source")):
        num_bytes = sum(node.get(key, 0) for node in nodes)
        parts += [f"{amount(num_bytes)}B from {place}"] if num_bytes else []
    causes = outputs.get("restart_causes")
    if isinstance(causes, list) and causes:
        parts.append(repeated("restarted {}", len(causes), str(causes[-1]).splitlines()[0]))
    parts += [str(outputs["problem"])] if "problem" in outputs else []
    return ", ".join(parts)


def _staged(outputs: Mapping[str, object]) -> str:
    nodes = outputs.get("nodes")
    rows = [row for row in nodes if isinstance(row, dict)] if isinstance(nodes, list) else []
    num_bytes, copied_bytes = outputs.get("num_bytes"), outputs.get("copied_bytes")
    parts = [f"{amount(num_bytes)}B"] if isinstance(num_bytes, (int, float)) else []
    parts += [f"on {len(rows)} nodes"] if len(rows) > 1 else []
    parts += [", ".join(sorted({f"on {row['tier']}" for row in rows if "tier" in row}))]
    rate = outputs.get("bytes_per_s")
    if not copied_bytes:
        parts.append("reused")
    elif isinstance(rate, (int, float)):
        parts.append(f"{amount(rate)}B/s")
    left_out = outputs.get("left_out_bytes")
    if left_out and isinstance(left_out, (int, float)):
        parts.append(f"{amount(left_out)}B left at the source")
    coming = sum(row.get("coming_bytes", 0) for row in rows)
    parts += [f"{amount(coming)}B to come while training runs"] if coming else []
    return ", ".join(filter(None, parts))


def repeated(event: str, times: int, why: str) -> str:
    """Return how often a step has had an event, `{}` in its words, and why the last time."""
    if times == 1:
        return f"{event.format('once')}: {why}"
    return f"{event.format(f'{times} times')}, the last: {why}"


def cost_words(cost: Cost) -> str:
    """Return the cost so far, with a line for each kind of machine."""
    parts = [f"${hundredths(cost.usd)} for {hundredths(cost.hours)} hours"]
    parts += [f"and {cost.unpriced} machines of unknown price"] if cost.unpriced else []
    parts += [f"the end of {cost.estimated} machines is an estimate"] if cost.estimated else []
    return "\n".join((", ".join(parts), *map(_line, cost.lines)))


def money(cost: Cost | None) -> str:
    """Return US dollars for a table; `?` and `+?` stand for machines without a known price."""
    if cost is None:
        return ""
    if cost.unpriced and not cost.usd:
        return "?"
    return f"${hundredths(cost.usd)}{'+?' if cost.unpriced else ''}"


def most_words(most: MostCost | None) -> str:
    """Return the maximum cost of a lease, or why it is unknown; empty if it costs nothing."""
    if most is None:
        return ""
    if most.usd is None:
        return f"cost unknown: {most.why}"
    return f"costs ${most.usd:,.2f} at most: {most.why}"


def _line(line: CostLine) -> str:
    usd = "?" if line.usd is None else f"${hundredths(line.usd)}"
    what = f"{line.kind} ({line.market})" if line.market else line.kind
    role = f"{line.role}: " if line.role else ""
    return f"{role}{usd}: {line.machines} x {what}, {hundredths(line.hours)} h, {line.price}"


def nodes_words(view: LeaseView) -> str:
    """Return the ready nodes, of those of a gang or the maximum of a pool: `2/4 (pool)`."""
    here = f"{view.nodes_here}/" if view.state.is_active else ""
    return f"{here}{view.nodes} ({view.kind})"


def busy(use: NodeLoad) -> Iterator[str]:
    """Yield the load of training nodes, a line each, and which rank has the most memory."""
    nodes, ranks = use.nodes, use.ranks
    for node in nodes[:_MAX_NODES]:
        gpu = "" if node.gpu is None else f", GPUs {node.gpu:.0%}"
        yield f"{node.node}: CPU {node.cpu:.0%}{gpu}, memory {node.memory:.0%}{_traffic(node)}"
    if len(nodes) > _MAX_NODES:
        yield f"… and {len(nodes) - _MAX_NODES} more nodes: headrace status --json"
    if ranks:
        most = max(ranks, key=lambda rank: rank.rss_bytes)
        cores = sum(rank.cores for rank in ranks) / len(ranks)
        yield (
            f"ranks: {cores:.2g} cores each, the most memory has rank {most.rank}: "
            f"{amount(most.rss_bytes)}B"
        )


def _traffic(node: NodeRow) -> str:
    rates = (
        ("disk read", node.disk_read_bytes_per_s),
        ("written", node.disk_write_bytes_per_s),
        ("network in", node.network_in_bytes_per_s),
        ("out", node.network_out_bytes_per_s),
    )
    return "".join(f", {name} {amount(rate)}B/s" for name, rate in rates if rate is not None)


def ends(ahead: Ahead | None) -> str:
    """Return when a run will end; empty if unknown."""
    if ahead is None or ahead.eta_s is None:
        return ""
    return f" · ends in {duration(ahead.eta_s)} ± {duration(ahead.eta_half_s)}"


def predicted(ahead: Ahead | None, took_s: float) -> Iterator[tuple[str, str]]:
    """Yield the predicted and actual time under a title; nothing without a prediction."""
    if ahead is not None and ahead.predicted_s is not None:
        expected = f"{duration(ahead.predicted_s)} ± {duration(ahead.predicted_half_s)}"
        yield "predicted", f"{expected}, took {duration(took_s)}"
