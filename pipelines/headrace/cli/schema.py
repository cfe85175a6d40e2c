"""`headrace schema`: JSON schema of recipes and sites, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.recipe.schema import json_schema
from headrace.storage.atomic import write_text


def register(app: typer.Typer) -> None:
    """Add `headrace schema` to the command line."""
    app.command("schema")(schema)


def schema(
    kind: Annotated[str, typer.Argument(help="recipe or site")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write to this file instead.")
    ] = None,
) -> None:
    """Print the JSON schema of a recipe or site file, with which editors check and complete.

    In the first line of the YAML file: `# yaml-language-server: $schema=recipe.schema.json`

    Example: headrace schema recipe --out recipe.schema.json
    """
    content = json.dumps(json_schema(kind), indent=2) + "\n"
    if out is None:
        typer.echo(content, nl=False)
        return
    write_text(out, content)
    typer.echo(f"Wrote {out}.")
