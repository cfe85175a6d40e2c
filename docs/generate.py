"""Writes docs/reference, and the layers on the architecture page: `generate.py [--check]`.

With --check nothing is written; pages that differ from the code are listed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from generators.commands import commands_page
from generators.dags import dags_page
from generators.layers import with_layers
from generators.models import model_page
from generators.python_api import api_page

from headrace.recipe.load import BUILT_IN
from headrace.recipe.recipe import Recipe
from headrace.recipe.schema import json_schema
from headrace.recipe.site import Site

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = ROOT / "docs" / "explanations" / "architecture.md"


def pages(folder: Path) -> dict[Path, str]:
    """All generated files with what they should hold."""
    schemas = {
        folder / "schemas" / f"{kind}.schema.json": _as_text(json_schema(kind))
        for kind in ("recipe", "site")
    }
    return {
        folder / "recipe.md": model_page(Recipe, BUILT_IN / "recipes" / "digits.yaml"),
        folder / "site.md": model_page(Site, BUILT_IN / "sites" / "laptop.yaml"),
        folder / "cli.md": commands_page(),
        folder / "dags.md": dags_page(ROOT / "dags"),
        folder / "python.md": api_page(),
        ARCHITECTURE: with_layers(ARCHITECTURE.read_text(), ROOT),
        **schemas,
    }


def _as_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2) + "\n"


def stale(expected: dict[Path, str]) -> list[Path]:
    """Files that do not hold what they should."""
    return [
        path for path, text in expected.items() if not path.exists() or path.read_text() != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "reference")
    arguments = parser.parse_args()
    expected = pages(arguments.folder)
    changed = stale(expected)
    for path in changed:
        print(f"{'out of date' if arguments.check else 'written'}: {path}")
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(expected[path])
    return int(arguments.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
