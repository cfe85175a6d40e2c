"""`headrace site` and `headrace schema`: list, show and check sites; the schema of YAML files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.text import Text

from headrace.batch.findings import Grade
from headrace.cli import arguments
from headrace.cli.console import JsonOption, SiteOption, open_console, plain_table, tell_json
from headrace.files.atomic import write_text
from headrace.recipe.load import available, load_site
from headrace.recipe.schema import json_schema
from headrace.site_check.check import Section, check

_STYLES = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}

app = typer.Typer(name="site", help="Sites: where work runs.", no_args_is_help=True)


@app.command("list")
def list_sites(as_json: JsonOption = False) -> None:
    """List the sites by name, with their files; of equal names the first one counts.

    Example: headrace site list
    """
    found = {name: str(file) for name, file in sorted(available("sites").items())}
    if as_json:
        tell_json(found)
        return
    open_console().print(plain_table("site", "file", rows=found.items()))


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(help="Name of a site, or a YAML file.", autocompletion=arguments.sites)
    ],
    as_json: JsonOption = False,
) -> None:
    """Show a site with all its defaults.

    Example: headrace site show laptop
    """
    content = load_site(name).model_dump(mode="json", by_alias=True)
    if as_json:
        tell_json(content)
    else:
        typer.echo(yaml.safe_dump(content, sort_keys=False), nl=False)


@app.command("check")
def check_site(
    site: SiteOption = "laptop",
    role: Annotated[list[str] | None, typer.Option(help="Only this role; repeatable.")] = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="Run a short job for each role, on all its nodes.")
    ] = False,
    wait: Annotated[
        float, typer.Option(help="Longest wait for the nodes of a job, seconds.")
    ] = 600,
    user: Annotated[
        str | None, typer.Option(help="User for `{user}`; default: this account.", metavar="NAME")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a site file against the real machines, and show what to correct.

    The exit code is 1 if there is a problem that prevents leases.

    Examples:
        headrace site check --site my-cluster
        headrace site check --site my-cluster --role gpu --submit
    """
    console = open_console(stderr=True)
    with console.status("Looking …") as status:
        sections = check(
            load_site(site, user),
            role or (),
            wait if submit else None,
            lambda text: status.update(Text(f"A job was submitted: {text}")),
        )
    if as_json:
        tell_json(sections)
    else:
        rows = chain.from_iterable(map(_rows, sections))
        open_console().print(plain_table("", "part", "checked", "found", rows=rows))
    if any(each.has_failed for each in sections):
        raise typer.Exit(1)


def schema(
    kind: Annotated[str, typer.Argument(help="recipe or site")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Print the JSON schema of recipe or site files, for editors.

    In the first line of the YAML file: `# yaml-language-server: $schema=recipe.schema.json`

    Example: headrace schema recipe --out recipe.schema.json
    """
    content = json.dumps(json_schema(kind), indent=2) + "\n"
    if out is None:
        typer.echo(content, nl=False)
        return
    write_text(out, content)
    typer.echo(f"Wrote {out}.")


def _rows(section: Section) -> Iterator[Sequence[str | Text]]:
    for each in section.findings:
        found = Text(each.seen)
        if each.advice:
            found.append(f"\n→ {each.advice}", style="dim")
        grade = Text(each.grade.value, style=_STYLES[each.grade])
        yield grade, section.part, each.subject, found
