"""`headrace site` and `headrace schema`: list, show, edit, check sites; schemas of files."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.text import Text

from headrace.batch.findings import Grade, Section
from headrace.cli import arguments
from headrace.cli.console import JsonOption, SiteOption, open_console, plain_table, tell, tell_json
from headrace.errors import SiteError, UserError
from headrace.files.atomic import write_bytes, write_text
from headrace.recipe.home import home
from headrace.recipe.load import BUILT_IN, available, load_site, locate
from headrace.recipe.schema import json_schema
from headrace.recipe.unix_accounts import other_account
from headrace.site_check.check import check

_STYLES = {Grade.OK: "green", Grade.WARN: "yellow", Grade.FAIL: "bold red"}
_Site = Annotated[
    str, typer.Argument(help="Name of a site, or a YAML file.", autocompletion=arguments.sites)
]
_DOORS = """Code and places that recipes may name, from a terminal: {}.
From Airflow's form, its REST API and pages: the site's datasets, the examples, and what allowed_*
keys list."""
_ALL = "all that this account may use"

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
def show(name: _Site, as_json: JsonOption = False) -> None:
    """Show a site with all its defaults, and what recipes may name there.

    Example: headrace site show laptop
    """
    site = load_site(name)
    content = site.model_dump(mode="json", by_alias=True, exclude={"is_fenced"})
    if as_json:
        tell_json(content)
    else:
        other = other_account(site)
        doors = _DOORS.format(f"as from Airflow: jobs run as {other}" if other else _ALL)
        typer.echo(_commented(doors) + yaml.safe_dump(content, sort_keys=False), nl=False)


@app.command()
def edit(name: _Site) -> None:
    """Edit a site's file in $VISUAL or $EDITOR; it stays as it is if the new text is invalid.

    For a built-in site, this is a file of yours with the changed keys alone.

    Example: headrace site edit laptop
    """
    file = locate("sites", name)
    own, text = file.resolve(), file.read_bytes()
    if own.is_relative_to(BUILT_IN):
        own = home() / "sites" / file.name
        title = f"Write the keys of site '{file.stem}' to change; the others stay built-in:\n"
        text = _commented(title + text.decode()).encode()
    copy = Path(tempfile.mkdtemp()) / own.name
    copy.write_bytes(text)
    _open_editor(copy)
    try:
        load_site(str(copy))
    except SiteError as error:
        raise SiteError(error.what, f"{error.hint} {own} is unchanged.".strip()) from None
    if copy.read_bytes() == text:
        tell(f"No change of site '{own.stem}'.")
    else:
        own.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(own, copy.read_bytes(), stat.S_IMODE(file.stat().st_mode))
        tell(f"Wrote {own}.")
    shutil.rmtree(copy.parent)


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
        print_findings(*sections)
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


def _commented(text: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def _open_editor(file: Path) -> None:
    """Let the user edit a file; the command is a line of shell, as for git."""
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    if code := subprocess.call(["/bin/sh", "-c", f'{command} "$@"', command, file]):
        raise UserError(
            f"The editor '{command}' ended with exit code {code}; nothing is changed",
            "Set VISUAL or EDITOR to the command of an editor, as in EDITOR=nano.",
        )


def print_findings(*sections: Section) -> None:
    """Print a table of findings."""
    rows = chain.from_iterable(map(_rows, sections))
    open_console().print(plain_table("", "part", "checked", "found", rows=rows))


def _rows(section: Section) -> Iterator[Sequence[str | Text]]:
    for each in section.findings:
        found = Text(each.seen)
        if each.advice:
            found.append(f"\n→ {each.advice}", style="dim")
        grade = Text(each.grade.value, style=_STYLES[each.grade])
        yield grade, section.part, each.subject, found
