"""Each hint about recipes, sites and overrides, followed to the letter, works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.errors import HeadraceError
from headrace.recipe.fence import opened
from headrace.recipe.fit import check_packing, check_training
from headrace.recipe.load import load_recipe, load_site
from headrace.recipe.overrides import check_size
from headrace.recipe.teams import check_user
from headrace.recipe.untrusted_overrides import check_figures, check_from_outside
from support.hints import Mistake, State, hints_of, stale, uncovered
from support.mistakes import recipes

INFORMATIONAL = {
    "Have it made, or say in `accounts` of the site which account it is.": "needs another account",
    "Install what it needs: pip install 'headrace[detection]'.": "tests have what it needs",
    "Leave --rehearse out; first run it with an argument of its own that makes it short.": (
        "an option of the command: test_runs follows it"
    ),
    "Set HEADRACE_HOME or HOME to a folder, or write the whole path.": "test_home follows it",
    "There is no schema of '…'": "names the schemas that there are",
}
"""Hints, or what they are about, that no mistake of the table comes to, and why."""


class Folder:
    """The recipe and the site of one mistake, and who asks by which overrides."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self.names = {"AT": str(at), "MODULE": "mine"}
        self.asked: dict[str, Any] = {
            "overrides": [],
            "user": None,
            "outside": False,
            "terminal": False,
            "points": [],
            "packed": False,
        }
        self.content: dict[str, Any] = {
            "recipe": {
                "name": "r",
                "seed": 7,
                "code": [f"{at}/code"],
                "dataset": {"name": "x", "source": f"{at}/source", "labels": "folders"},
                "model": {"_target_": "mine.Model", "width": 8},
                "trainer": {"accelerator": "cpu"},
                "train": {"role": "gpu"},
                "evaluate": {"split": "test"},
            },
            "site": {
                "name": "s",
                "folder": f"{at}/site",
                "roles": {"cpu": {}, "gpu": {"kind": "gang", "ranks_per_node": 2}},
                "tiers": [{"name": "disk", "folder": f"{at}/cache"}],
                "allowed_sources": [f"{at}/source"],
                "allowed_outputs": [f"{at}/out"],
                "allowed_code": [f"{at}/code"],
            },
        }
        self.change({"../code/MODULE.py": recipes.CODE})

    def change(self, state: State) -> None:
        for name, value in state.items():
            key, told = self._told(name), self._told(value)
            if key in self.asked:
                self.asked[key] = told
            elif key.startswith(("recipe.", "site.")):
                self._set(key.split("."), told)
            else:
                file = self.at / "source" / key
                file.parent.mkdir(parents=True, exist_ok=True)
                file.resolve().parent.mkdir(parents=True, exist_ok=True)
                file.write_text(told)

    def _told(self, value: Any) -> Any:
        """A value with the names of this folder."""
        if isinstance(value, dict):
            return {key: self._told(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._told(each) for each in value]
        for short, name in self.names.items() if isinstance(value, str) else ():
            value = value.replace(short, name)
        return value

    def _set(self, parts: list[str], value: object) -> None:
        into = self.content
        for part in parts[:-1]:
            into = into.setdefault(part, {})
        if value is None and parts[-1] != "evaluate":
            into.pop(parts[-1], None)
        else:
            into[parts[-1]] = value

    def check(self) -> None:
        """All that is told before anything starts."""
        for kind, content in self.content.items():
            (self.at / f"{kind}.yaml").write_text(yaml.safe_dump(content))
        check_size(self.asked["overrides"])
        if self.asked["outside"]:
            check_from_outside(self.asked["overrides"])
        recipe = load_recipe(str(self.at / "recipe.yaml"), self.asked["overrides"])
        site = load_site(str(self.at / "site.yaml"), self.asked["user"])
        if self.asked["user"]:
            check_user(site, self.asked["user"])
        check_figures(self.asked["points"], [{"model.name": "a"}])
        if self.asked["terminal"]:
            site = opened(site, is_from_terminal=True)
        check_packing(recipe, site)
        if self.asked["packed"]:
            assert recipe.named_dataset
        check_training(recipe, site)


@pytest.mark.parametrize("mistake", recipes.MISTAKES, ids=str)
def test_a_hint_followed_to_the_letter_works(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [re.escape(piece).replace("…", ".*") for piece in (mistake.what, mistake.hint)]
    for number, followed in enumerate(mistake.followed):
        monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / str(number) / "home"))
        folder = Folder(tmp_path / str(number))
        folder.change(mistake.given)
        with pytest.raises(HeadraceError) as caught:
            folder.check()
        assert re.search(pieces[0], caught.value.what, re.DOTALL)
        assert re.search(pieces[1], caught.value.hint)
        folder.change(followed)
        folder.check()


def test_every_hint_is_followed() -> None:
    hints = hints_of("recipe")
    assert not uncovered(hints, recipes.MISTAKES, INFORMATIONAL)
    assert not stale(hints, recipes.MISTAKES, INFORMATIONAL)
