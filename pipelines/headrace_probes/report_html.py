"""Reports of a probe, and of a comparison: one HTML file without external resources."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from headrace.report.html import ACCENT, Card, Report, Table, columns, figure, png, render
from headrace_probes.statistics import Comparison, Difference, Probed, Summary

_WIDTH, _LINE, _LEAST = 6.4, 0.24, 2.0
_BAD = "#b3261e"
_SOFT = "#9aa6b2"


def report_of(found: Probed) -> str:
    """Return the report of a probe as HTML."""
    return render(
        Report(
            title=found.run_id,
            lead=lead_of(found),
            cards=tuple(_cards(found)),
            figures=dict(_figures(found.rows)),
            tables=(_rows(found.rows), *_places(found), _notes(found)),
        )
    )


def report_of_comparison(found: Comparison) -> str:
    """Return the report of a comparison as HTML."""
    beyond = [each for each in found.differences if each.is_beyond]
    worst = max((each.loss for each in beyond), default=0.0)
    pairs = zip(took_words(found.before), took_words(found.after), strict=True)
    took = [(name, before, after) for (name, before), (_, after) in pairs]
    figures = {}
    if found.differences:
        figures["Loss; grey: within the spread of the repeats"] = _losses(found.differences)
    return render(
        Report(
            title=f"{found.after.run_id} compared with {found.before.run_id}",
            lead=f"{lead_of(found.after)}. Before: {lead_of(found.before)}",
            cards=(
                Card(name="beyond the spread", value=f"{len(beyond)}",
                     note=f"of {len(found.differences)} in both"),
                Card(name="largest loss", value=f"{worst:.1%}"),
            ),
            figures=figures,
            tables=(
                _differences(found.differences),
                _beside("Machines that differ", [
                    (each.key, each.before, each.after) for each in found.machines
                ]),
                _beside("What the probes took", took),
                Table(
                    title="In only one of them, or with other settings",
                    columns=columns("Part", "Figure", "Settings"),
                    rows=[(each.part, each.name, each.settings) for each in found.alone],
                    empty="None.",
                ),
                *_places(found.before, "Before: "),
                *_places(found.after, "After: "),
            ),
        )
    )  # fmt: skip


def lead_of(found: Probed) -> str:
    """Return where and how a probe was run, in one line."""
    record = found.record
    where = f"site {record.site}, role {record.role} on {record.backend}"
    inside = f"in {record.container}" if record.container else "bare"
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.started_at))
    quick = ", quick: its figures mean little" if record.options.quick else ""
    num = len(record.nodes)
    return f"{where}, {num} node{'s' if num > 1 else ''}, {inside}, {at}{quick}"


def took_words(found: Probed) -> list[tuple[str, str]]:
    """Return the usage of a probe, from the ledger."""
    return [
        ("time to completion", f"{found.elapsed_s:.0f} s"),
        ("machine time", f"{found.node_s:.0f} s"),
        ("cost", "not known" if found.usd is None else f"${found.usd:,.4f}"),
        ("CPUs busy", "not known" if found.cpu_use is None else f"{found.cpu_use:.0%}"),
        ("GPUs busy", "not known" if found.gpu_use is None else f"{found.gpu_use:.0%}"),
    ]


def _cards(found: Probed) -> Iterator[Card]:
    for name, value in took_words(found):
        yield Card(name=name, value=value)
    if found.efficiency is not None:
        yield Card(name="scaling efficiency", value=f"{found.efficiency:.0%}", note="of training")


def _rows(rows: Sequence[Summary]) -> Table:
    return Table(
        title="Figures: the median of all repeats",
        columns=(
            *columns("Part", "Figure", "Settings"),
            *columns("Median", kind="number"),
            *columns("Unit"),
            *columns("Spread", "Of the limit", "Repeats", kind="number"),
            *columns("Limit", "Slowest node"),
        ),
        rows=[
            (
                each.part,
                each.name,
                each.settings,
                f"{each.median:.4g}",
                each.unit,
                f"{each.spread:.1%}",
                "" if each.of_limit is None else f"{each.of_limit:.0%}",
                f"{len(each.values)}",
                "" if each.limit is None else f"{each.limit:.4g}: {each.limit_source}",
                each.slowest,
            )
            for each in rows
        ],
    )


def _differences(found: Sequence[Difference]) -> Table:
    return Table(
        title="Side by side",
        columns=(
            *columns("Part", "Figure", "Settings", "Unit"),
            *columns("Before", "After", "Loss", kind="number"),
            *columns("Spread"),
        ),
        rows=[
            (
                each.part,
                each.name,
                each.settings,
                each.unit,
                f"{each.before:.4g}",
                f"{each.after:.4g}",
                f"{each.loss:+.1%}",
                difference_words(each),
            )
            for each in found
        ],
        empty="They have no figure in common.",
    )


def difference_words(found: Difference) -> str:
    """Return whether a difference is more than the spread of the repeats, for users."""
    return f"beyond it, p {found.p:.1g}" if found.is_beyond else "within the spread"


def _beside(title: str, rows: Sequence[tuple[str, str, str]]) -> Table:
    kinds = (*columns("What"), *columns("Before", "After", kind="number"))
    return Table(title=title, columns=kinds, rows=rows, empty="None.")


def _places(found: Probed, prefix: str = "") -> Iterator[Table]:
    machines = found.record.findings.machines
    yield Table(
        title=f"{prefix}nodes" if prefix else "Nodes",
        columns=columns("Node", "Host", "CPU", "CPUs", "Memory", "GPUs", "Kernel", "Versions"),
        rows=[
            (
                str(each["name"]),
                str(each["hostname"]),
                str(each["cpu"]),
                str(each["num_cpus"]),
                f"{each['memory_bytes'] / 2**30:.0f} GiB",
                ", ".join(each["gpus"]),
                str(each["platform"]),
                ", ".join(
                    f"{name} {version}"
                    for name, version in (
                        *{"python": each["python"], **each["packages"]}.items(),
                        *machines.get(each["name"], {}).items(),
                    )
                ),
            )
            for each in found.record.nodes
        ],
    )
    if found.images:
        yield Table(
            title=f"{prefix}images" if prefix else "Images",
            columns=columns("Image", "Digest", kind="path"),
            rows=list(found.images.items()),
        )


def _notes(found: Probed) -> Table:
    rows = [(each,) for each in found.record.findings.notes]
    return Table(title="Notes", columns=columns("What"), rows=rows, empty="None.")


def _figures(rows: Sequence[Summary]) -> Iterator[tuple[str, bytes]]:
    limited = [(each.title, each.of_limit, ACCENT) for each in rows if each.of_limit]
    if limited:
        yield "Share of the hardware's limit", _bars(limited)
    spreads = [(each.title, each.spread, _SOFT) for each in rows]
    yield "Spread: distance between the quartiles", _bars(spreads)
    curves: dict[str, list[tuple[int, float]]] = {}
    for each in rows:
        if each.message_bytes is not None and each.unit == "GB/s":
            name = each.name.partition(",")[0]
            curves.setdefault(name, []).append((each.message_bytes, each.median))
    if curves:
        yield "GB/s by the size of messages", _by_size(curves)


def _losses(found: Sequence[Difference]) -> bytes:
    def colour(each: Difference) -> str:
        return (_BAD if each.loss > 0 else ACCENT) if each.is_beyond else _SOFT

    return _bars([(each.title, each.loss, colour(each)) for each in found])


def _bars(shares: Sequence[tuple[str, float, str]]) -> bytes:
    """Draw shares in percent, one bar each, the first on top, with names and colours."""
    drawn, axes = figure(_WIDTH, max(_LEAST, _LINE * len(shares) + 0.6))
    names, values, colours = zip(*shares, strict=True)
    positions = range(len(shares))
    axes.barh(positions, [100 * value for value in values], color=colours)
    axes.set_yticks(positions, labels=names, fontsize=7)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_xlabel("%")
    return png(drawn)


def _by_size(curves: dict[str, list[tuple[int, float]]]) -> bytes:
    drawn, axes = figure(_WIDTH, 3.4)
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes")
    axes.set_ylabel("GB/s")
    axes.legend(fontsize=8)
    return png(drawn)
