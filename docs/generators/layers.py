"""The layers of the engine, as import-linter checks them."""

from __future__ import annotations

import re
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BLOCK = re.compile(r"(?<=<!-- layers -->\n).*?(?=<!-- /layers -->)", re.DOTALL)


def with_layers(text: str, project: str) -> str:
    """A page whose block between `<!-- layers -->` and `<!-- /layers -->` shows the contracts.

    Args:
        text: The page.
        project: Content of `pyproject.toml`.
    """
    first, *others = tomllib.loads(project)["tool"]["importlinter"]["contracts"]
    layers = "\n".join(first["layers"])
    rules = "\n".join(f"- {each['name']}." for each in others)
    return _BLOCK.sub(lambda _: f"```text\n{layers}\n```\n\n{rules}\n", text)
