"""Who may use which site: users, and teams of one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import AccessError, SiteError, UserError
from headrace.recipe.load import load_site, site_now
from headrace.recipe.teams import check_user, may_use, sites_for, teams, teams_of
from support.access import write_site


def test_a_site_is_for_everybody_or_for_whom_it_lists(headrace_home: Path):
    (headrace_home / "teams.yaml").write_text("vision: [ada, grace]\nspeech: [grace]\n")
    write_site(headrace_home, ["bob", "@vision"])
    site = load_site("club")
    assert [may_use(site, name) for name in ("ada", "bob", "grace", "eve", "@vision", "")] == [
        *(True, True, True),
        *(False, False, False),
    ]
    assert may_use(load_site("laptop"), "eve")
    assert (teams_of("grace"), teams_of("eve")) == (("vision", "speech"), ())
    with pytest.raises(AccessError) as caught:
        check_user(site, "eve")
    assert caught.value.what == "User eve may not use site 'club' (`allowed_users`)"
    assert "Sites for eve: laptop" in caught.value.hint
    assert "club" not in caught.value.hint


def test_a_site_for_nobody_is_for_nobody(headrace_home: Path):
    write_site(headrace_home, [])
    assert not may_use(load_site("club"), "ada")


def test_a_team_that_is_not_there_lets_nobody_in(headrace_home: Path):
    """But those who are listed by name."""
    (headrace_home / "teams.yaml").write_text("vision: [ada]\n")
    write_site(headrace_home, ["bob", "@visoin", "@vision"])
    check_user(load_site("club"), "bob")
    with pytest.raises(UserError, match="has the team 'visoin'") as caught:
        check_user(load_site("club"), "ada")
    assert caught.value.hint == "Did you mean 'vision'? Valid: vision."
    (headrace_home / "teams.yaml").unlink()
    with pytest.raises(UserError) as caught:
        may_use(load_site("club"), "eve")
    assert caught.value.hint == f"Write its users into {headrace_home / 'teams.yaml'}."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vision: ada", "vision: give a list (at least 1 entries), each text"),
        ("vision: []", "vision: give a list (at least 1 entries)"),
        ("vision: ['@speech']", "'@speech' is a team, and teams have users only"),
        ("vision: ['ada lovelace']", "vision.0: give text of the form"),
        ("'vision team': [ada]", "vision team: give another name for the key, of letters"),
        ("- ada", "the file: give a mapping, each a list (at least 1 entries)"),
        ("vision: [ada", "cannot be read"),
    ],
)
def test_a_wrong_file_of_teams_is_explained(headrace_home: Path, text: str, words: str):
    (headrace_home / "teams.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        teams()
    assert "teams.yaml" in caught.value.what
    assert words in caught.value.what
    assert "vision: [ada, grace]" in caught.value.hint


def test_the_file_of_teams_is_read_anew_and_may_lie_elsewhere(
    headrace_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert teams() == {}
    (headrace_home / "teams.yaml").write_text("vision: [ada]\n")
    assert teams_of("ada") == ("vision",)
    (headrace_home / "teams.yaml").write_text("vision: [grace]\n\n")
    assert teams_of("ada") == ()
    monkeypatch.setenv("HEADRACE_TEAMS", str(tmp_path / "shared.yaml"))
    assert teams() == {}
    (tmp_path / "shared.yaml").write_text("all: [ada]\n")
    assert teams_of("ada") == ("all",)


def test_members_are_names(headrace_home: Path):
    write_site(headrace_home, ["ada lovelace"])
    with pytest.raises(SiteError, match=r"allowed_users\.0"):
        site_now("club")


def test_sites_whose_runs_are_shown(headrace_home: Path):
    """Where any lists users, one that cannot be read, or shares a name with it, is for nobody."""
    assert sites_for("ada") is None
    write_site(headrace_home, ["ada"])
    assert sites_for("ada") == {"slurm-dev", "laptop", "club"}
    assert sites_for("eve") == {"slurm-dev", "laptop"}
    write_site(headrace_home, None, name="other")
    assert sites_for("eve") == {"slurm-dev", "laptop", "other"}
    file = headrace_home / "sites" / "other.yaml"
    file.write_text(file.read_text().replace("name: other", "name: club"))
    assert sites_for("eve") == {"slurm-dev", "laptop"}
    file.write_text("roles: 7\n")
    assert sites_for("eve") == {"slurm-dev", "laptop"}
    write_site(headrace_home, ["@gone"])
    assert sites_for("ada") == {"slurm-dev", "laptop"}
