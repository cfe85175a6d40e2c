"""`headrace probe`: measure a site, and compare two of them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.arguments import runs as run_names
from headrace.cli.console import JsonOption, SiteOption, open_console, outlive_terminal, tell_json
from headrace.cli.listing import Listing
from headrace.cli.runs import request_of, tell_end
from headrace.cli.watching import Watching
from headrace.errors import UserError, nearest
from headrace.execution.execute import execute
from headrace.recipe.load import available, load_site, parse
from headrace.runs.lifecycle import create_run
from headrace.runs.runs import RunRequest
from headrace.states import StepState
from headrace.status.run_details import run_details
from headrace_probes.probe_records import PARTS, Part, ProbeOptions
from headrace_probes.report import RECIPE, overrides_for, write_comparison
from headrace_probes.statistics import Comparison, Probed, probed, side_by_side


def probe(  # noqa: PLR0913  options of a command
    run_id: Annotated[
        str | None,
        typer.Argument(help="An ended probe, to show it again.", autocompletion=run_names),
    ] = None,
    site: SiteOption = "laptop",
    compare: Annotated[
        str, typer.Option(help="A site to measure first, or an earlier probe.")
    ] = "",
    role: Annotated[str, typer.Option(help="Role of the site; default: `gpu`, or its first.")] = "",
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes; default: all of a gang, up to 2 of a pool.")
    ] = None,
    only: Annotated[str, typer.Option(help=f"Parts to measure: {','.join(PARTS)}.")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: test in seconds that everything works.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the machines of a site, bare or in a container.

    Matrix products, memory, network, storage, a training of ResNet-50 and the start of Python, each
    several times. The output is the median, the spread, and the share of the hardware's limit, if
    known. A probe is a run with a report, cost and time in the ledger. With **--compare** two
    probes are shown side by side, with the loss relative to the one named there.

    Examples:
        headrace probe --site laptop --quick

        headrace probe --site contained --compare bare --role gpu

        headrace probe probe-20260102-030405-0a1b2c3d --compare probe-20260101-030405-1b2c3d4e
    """
    console = open_console(stderr=as_json)
    given = {"only": _parts(only), "role": role, "nodes": nodes, "quick": quick}
    options = parse(ProbeOptions, given, "The probe")

    def asked(name: str) -> RunRequest:
        found = overrides_for(load_site(name), options)
        return request_of(
            RECIPE, found, name, kind="probe", options=options.model_dump(mode="json")
        )

    before = None
    if (compare and compare in available("sites")) or compare.endswith((".yaml", ".yml")):
        request = asked(compare)
        if run_id is None:  # mistakes in the second one are reported before the first is run
            asked(site)
        before = _done(request, console, as_json=as_json)
    elif compare:
        before = probed(compare)
    after = probed(run_id) if run_id is not None else _done(asked(site), console, as_json=as_json)
    if before is None:
        _show(after, console, as_json=as_json)
        return
    _show_both(side_by_side(before, after), console, as_json=as_json)


def _parts(text: str) -> tuple[Part, ...]:
    """Return the parts in a text; raise UserError for an unknown one."""
    known = {str(part): part for part in PARTS}
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in known:
            raise UserError(f"--only names '{word}', which is not a part", nearest(word, known))
    return tuple(known[word] for word in dict.fromkeys(words)) or PARTS


def _done(request: RunRequest, console: Console, *, as_json: bool) -> Probed:
    """Run a probe in this process, and show its progress; exit if it does not succeed."""
    run = create_run(request)
    outlive_terminal()
    with Watching(run.run_id, console) as tick:
        execute(run, tick)
    view = run_details(run.run_id)
    if view.state is not StepState.SUCCEEDED:
        tell_end(view, console, as_json=as_json)
    return probed(run.run_id)


def _show(found: Probed, console: Console, *, as_json: bool) -> None:
    if as_json:
        tell_json(found.model_dump(mode="json"))
        return
    from headrace_probes.report_html import lead_of, took_words

    console.print(f"{lead_of(found)}\n", soft_wrap=True)
    listed = Listing("figure", "median", "unit", "spread", "limit", figures=("median", "spread"))
    for each in found.rows:
        of_limit = "" if each.of_limit is None else f"{each.of_limit:.0%}"
        listed.add(each.name, f"{each.median:.4g}", each.unit, f"{each.spread:.0%}", of_limit)
    console.print(listed)
    if found.efficiency is not None:
        console.print(f"\nscaling efficiency of training: {found.efficiency:.0%}")
    for note in found.record.findings.notes:
        console.print(note, soft_wrap=True)
    took = ", ".join(f"{name} {value}" for name, value in took_words(found))
    console.print(f"\n{took}", soft_wrap=True)
    console.print(f"report: {found.report}", soft_wrap=True)


def _show_both(found: Comparison, console: Console, *, as_json: bool) -> None:
    file = write_comparison(found)
    if as_json:
        tell_json({**found.model_dump(mode="json"), "report": str(file)})
        return
    from headrace_probes.report_html import difference_words, lead_of, took_words

    console.print(f"before: {lead_of(found.before)}", soft_wrap=True)
    console.print(f"after:  {lead_of(found.after)}\n", soft_wrap=True)
    listed = Listing(
        *("figure", "before", "after", "unit", "loss", "spread"),
        figures=("before", "after", "loss"),
    )
    for each in found.differences:
        values = (f"{each.before:.4g}", f"{each.after:.4g}", each.unit, f"{each.loss:+.1%}")
        listed.add(each.name, *values, difference_words(each))
    console.print(listed)
    took = zip(took_words(found.before), took_words(found.after), strict=True)
    usage = Listing("", "before", "after", figures=("before", "after"))
    for (name, before), (_, after) in took:
        usage.add(name, before, after)
    console.print(usage)
    for of in found.machines:
        console.print(f"{of.key}: {of.before or '-'} -> {of.after or '-'}", soft_wrap=True)
    if found.alone:
        console.print(f"{len(found.alone)} figures are in only one of them, or differ in settings.")
    console.print(f"report: {file}", soft_wrap=True)
