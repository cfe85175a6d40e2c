"""The command ownership: the cost of an hour of an owned cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml
from pydantic import ValidationError

from headrace.cli.console import JsonOption, tell_json
from headrace.errors import UserError
from headrace.recipe.schema import explain
from headrace_foresight.ownership import Ownership, costs_of_project, costs_per_year, usd_per_hour


def ownership(
    file: Annotated[Path, typer.Argument(help="YAML file with cluster, and optionally project.")],
    as_json: JsonOption = False,
) -> None:
    """Compute what an hour of an owned cluster costs.

    It depends on purchase, power, room, people and utilisation. The result goes into the site as
    `price: {usd_per_gpu_hour: …}`. With `project` in the file, its whole cost is shown, too.

    Example: headrace ownership cluster.yaml
    """
    given = _read(file)
    hourly, yearly = usd_per_hour(given.cluster), costs_per_year(given.cluster)
    project = costs_of_project(given.project, hourly) if given.project else {}
    what = "gpu" if given.cluster.gpus_per_node else "node"
    if as_json:
        costs = {f"usd_per_{what}_hour": hourly, "usd_per_year": yearly, "usd_of_project": project}
        tell_json(costs)
        return
    _tell("a year", yearly)
    typer.echo(f"price: {{usd_per_{what}_hour: {hourly:.4f}}}")
    if project:
        _tell("the project", project)


def _tell(title: str, parts: dict[str, float]) -> None:
    for name, usd in (*parts.items(), (title, sum(parts.values()))):
        typer.echo(f"{name:<18}{usd:>16,.2f}")


def _read(file: Path) -> Ownership:
    try:
        return Ownership.model_validate(yaml.safe_load(file.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file} cannot be read: {error}", "Give a YAML file.") from error
    except ValidationError as error:
        what, hint = explain(error, Ownership, str(file))
        explained = "Its keys are explained in docs/explanations/costs.md."
        raise UserError(what, f"{hint} {explained}".lstrip()) from None
