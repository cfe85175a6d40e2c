"""What runs and trials consist of: diff, rerun, package and adopt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal

from headrace.cli import arguments
from headrace.cli.console import JsonOption, SiteOption, open_console, tell, tell_json
from headrace.cli.detaching import Detaching, DetachOption
from headrace.cli.listing import ListColumn, Listing, tell_list
from headrace.cli.runs import carry_out, request_of
from headrace.errors import UserError
from headrace.files.layout import RunFolder, SiteFolder
from headrace.recipe.load import load_site
from headrace.runs.code_state import CodeSnapshot
from headrace.runs.lifecycle import create_run
from headrace.runs.lock import begin_in, frozen_environment
from headrace.runs.names import named, there
from headrace.runs.origin import Beside, Origin, origin, side_by_side, today
from headrace.runs.parts import sites_of
from headrace.runs.runs import RunRequest, run_of_record
from headrace.status.run_page import compare_page
from headrace.suites.values import as_overrides


def diff(
    names: Annotated[list[str], arguments.a_run("Ids of runs, or SUITE:NUMBER.", "RUN...")],
    as_json: JsonOption = False,
) -> None:
    """Show the differences between runs or trials.

    Recipe, code, images, packages, machines, data and metrics are compared, a column for each run.
    A trial of a suite is identified by its number, as in SUITE:7; a suite counts as its best trial.

    Examples:
        headrace diff digits-20260102-030405-0a1b2c3d digits-20260103-030405-4e5f6a7b
        headrace diff digits-sweep-20260102-030405-0a1b2c3d:3 digits-20260103-030405-4e5f6a7b
    """
    if len(names) < 2:
        raise UserError("There is nothing to compare with", "Give two runs or more.")
    page = compare_page(names)
    if as_json:
        tell_json(page)
        return
    for place, name in enumerate(page.names, 1):
        tell(f"{place}: {name}")
    columns = _columns(*map(str, range(1, len(names) + 1)))
    tell_list(page.rows, columns, "No recorded part differs.", as_json=False)


def rerun(
    run_id: arguments.NamedRun,
    check: Annotated[
        bool, typer.Option("--check", help="Only show what is different today.")
    ] = False,
    site: Annotated[str, arguments.a_site("default: as recorded.")] = "",
    frozen: Annotated[
        bool, typer.Option("--frozen", help="With the packages of its lock, in an environment.")
    ] = False,
    detach: DetachOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a run or a trial once more, from its record alone.

    The recipe is the resolved one with its seed, the site is as recorded, and a trial gets as many
    ranks as trained it. What is different today is shown first: commit and uncommitted changes,
    Python and packages, images of containers, the packed dataset. With `--json` and
    `--detach` it goes to standard error.

    With **--frozen** it begins in an environment with Python and packages of then, which uv makes.
    It is refused if one is not available. At the end the hashes of the weights are compared.

    Examples:
        headrace rerun digits-20260102-030405-0a1b2c3d --check
        headrace rerun digits-20260102-030405-0a1b2c3d --frozen
        headrace rerun digits-sweep-20260102-030405-0a1b2c3d:3
    """
    before = origin(run_id)
    if frozen and not check:
        run = RunFolder(Path(before.folder.partition("/trials/")[0]))
        begin_in(frozen_environment(run, before.made_with.python))
    leaving = Detaching(wanted=detach and not check)
    found = side_by_side((before, today(before)))
    if as_json and check:
        tell_json(found)
        return
    console = open_console(stderr=as_json or detach)
    _tell_today(before, found, console)
    if check:
        return
    job = create_run(_request(before, site))
    carry_out(job, leaving, as_json=as_json)
    after = origin(job.run_id)
    if before.weights and after.weights:
        is_same = before.weights == after.weights
        words = "the same as then" if is_same else f"not the same: then {before.weights}"
        console.print(f"weights: {after.weights}, {words}")
        if not is_same:
            console.print(Listing.of(side_by_side((before, after)), *_columns("then", "now")))


def package(
    run_id: arguments.NamedRun,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; default: RUN.tar.")
    ] = None,
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Also its packed dataset.")
    ] = False,
) -> None:
    """Write a run as one file for another home.

    The run has ended; `headrace adopt` opens the file. It has the run's folder (recipe, code,
    checkpoints, report), records and logs of its leases, and checksums. Keys of leases, links and
    hidden files are left out.

    Examples:
        headrace package digits-20260102-030405-0a1b2c3d
        headrace package digits-20260102-030405-0a1b2c3d --with-data -o digits.tar
    """
    from headrace.execution.package import write_package  # other commands do without

    record = there(run_id).record  # of a trial its suite
    file = (output or Path(f"{record.run_id}.tar")).expanduser().absolute()
    if file.exists():
        raise UserError(f"{file} exists", "Name another file with -o.")
    write_package(record, file, with_data=with_data)
    tell(f"{file}: {decimal(file.stat().st_size)}")


def adopt(
    file: Annotated[
        Path, typer.Argument(help="File of `headrace package`.", exists=True, dir_okay=False)
    ],
    site: SiteOption = "laptop",
) -> None:
    """Enter the run of a package.

    Its files come into the folder of a site. A package has code and settings that run when you
    evaluate or repeat it: open only those of people you trust.

    Example: headrace adopt digits.tar
    """
    from headrace.execution.package import open_package  # other commands do without

    folder = SiteFolder(Path(load_site(site).folder).expanduser().absolute())
    run_id = open_package(file.expanduser(), folder)
    tell(f"run {run_id}: {folder.run(run_id).path}")


def _request(before: Origin, site: str) -> RunRequest:
    found = named(before.name)
    run, asked = RunFolder(Path(found.record.folder)), run_of_record(found.record).request
    names = () if found.trial else ("kind", "of", "watch", "options")
    more = {name: getattr(asked, name) for name in names}
    recipe, suite = Path(before.folder) / run.recipe.name, before.recipe.suite
    overrides = tuple(f"train.{key}={value}" for key, value in before.launch.items())
    if found.trial is not None and found.folder.path.is_symlink():  # it ran at another site
        values = (f"{key}={json.dumps(value)}" for key, value in found.trial.values.items())
        recipe, overrides = run.source, (*values, *overrides)
    if suite is not None:  # interpolations of its source depend on the values of trials
        given = suite.model_dump(mode="json", exclude_defaults=True)
        recipe, overrides = run.source, as_overrides(given)
    sites = ",".join(each.asked for each in sites_of(run).values()) if suite is not None else ""
    return request_of(str(recipe), overrides, site or sites or str(run.site), **more)


def _tell_today(before: Origin, found: Sequence[Beside], console: Console) -> None:
    if not found:
        console.print("No recorded part is different today.")
        return
    console.print(Listing.of(found, *_columns("then", "today")))
    for line in _ways_back(before, found):
        console.print(line, soft_wrap=True)


def _ways_back(before: Origin, found: Sequence[Beside]) -> Iterator[str]:
    keys = {each.key for each in found if each.part == "code"}
    then, run = before.made_with, RunFolder(Path(before.folder)).whole
    if keys & {"commit", "uncommitted"} and then.git is not None:
        apply = f" && git -C {then.code_folder} apply {run.diff}" if run.diff.exists() else ""
        if CodeSnapshot.of(run).digests:
            yield "The code that the recipe names is taken from the run's own copy."
        yield f"To restore the code: git -C {then.code_folder} checkout {then.git.commit}{apply}"
    for tree in CodeSnapshot.of(run).trees:
        if tree.not_copied:
            yield f"Not in the run's copy of {tree.source}: {', '.join(tree.not_copied)}"
    if then.left_out:
        yield f"Uncommitted then, and too large to be recorded: {', '.join(then.left_out)}"


def _columns(*titles: str) -> list[ListColumn]:
    values = [
        ListColumn(title, partial(_value, place), is_label=True)
        for place, title in enumerate(titles)
    ]
    return [ListColumn("what", lambda row: f"{row.part} {row.key}"), *values]


def _value(place: int, row: Beside) -> str:
    return row.values[place] or "-"
