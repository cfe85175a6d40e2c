"""Sites that are for some users only."""

from __future__ import annotations

from pathlib import Path

import yaml

from headrace.recipe.load import BUILT_IN


def write_site(home: Path, allowed: object, name: str = "club", **keys: object) -> None:
    """A laptop for some users."""
    laptop = yaml.safe_load((BUILT_IN / "sites" / "laptop.yaml").read_text())
    (home / "sites").mkdir(exist_ok=True)
    content = laptop | {"name": name, "allowed_users": allowed, **keys}
    (home / "sites" / f"{name}.yaml").write_text(yaml.safe_dump(content))
