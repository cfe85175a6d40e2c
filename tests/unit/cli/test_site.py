"""`headrace site`: what recipes may name there is shown; a file is edited safely."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from headrace.recipe.load import load_site
from support.command_line import headrace, refusal


@pytest.fixture
def edit(headrace_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Edit the laptop by an editor that appends a text, or does what a line of shell says."""
    monkeypatch.delenv("VISUAL", raising=False)

    def append(text: str, shell: str = "") -> None:
        (tmp_path / "more").write_text(text)
        monkeypatch.setenv("EDITOR", f"sh -c '{shell or f'cat {tmp_path}/more >> $1'}' an_editor")

    return append


def own_file(home: Path) -> Path:
    return home / "sites" / "laptop.yaml"


def test_the_fence_of_each_door_is_shown_and_the_rest_is_a_site(headrace_home, tmp_path):
    shown = headrace("site", "show", "laptop").stdout
    assert "from a terminal: all that this account may use." in shown
    assert "# From Airflow's form, its REST API and pages: " in shown
    assert "is_fenced" not in shown + headrace("site", "show", "laptop", "--json").stdout
    role = "{backend: slurm, kind: gang, batch: {submit_as: ada}}"
    (tmp_path / "other.yaml").write_text(
        f"folder: /x\nroles: {{gpu: {role}}}\ntiers: [{{name: disk, folder: /x}}]\n"
    )
    other = headrace("site", "show", str(tmp_path / "other.yaml")).stdout
    assert "from a terminal: as from Airflow: jobs run as ada." in other
    (tmp_path / "copy.yaml").write_text(shown)
    assert load_site(str(tmp_path / "copy.yaml")) == load_site("laptop")


def test_output_redirected_onto_the_file_that_it_is_read_from_does_no_harm(headrace_home):
    file = own_file(headrace_home)
    file.parent.mkdir()
    before = load_site("laptop")
    code = "import sys; from headrace.cli.app import main; sys.exit(main())"
    for _ in range(2):
        with file.open("w") as out:  # as a shell does: it is empty then
            command = [sys.executable, "-c", code, "site", "show", "laptop"]
            subprocess.run(command, stdout=out, check=True, timeout=120)
        assert load_site("laptop") == before


def test_a_built_in_site_is_changed_by_an_editor(headrace_home, edit):
    edit("limits: {max_leases: 3}\n")
    assert headrace("site", "edit", "laptop").stdout == f"Wrote {own_file(headrace_home)}.\n"
    text = own_file(headrace_home).read_text()
    assert text.startswith("# Write the keys of site 'laptop' to change; ")
    assert "#   max_leases: 2\n" in text
    assert yaml.safe_load(text) == {"limits": {"max_leases": 3}}
    assert load_site("laptop").limits.max_leases == 3
    own_file(headrace_home).chmod(0o640)
    edit("allowed_code: [/opt]\n")
    headrace("site", "edit", "laptop")
    assert load_site("laptop").allowed_code == ("/opt",)
    assert load_site("laptop").limits.max_leases == 3
    assert stat.S_IMODE(own_file(headrace_home).stat().st_mode) == 0o640


def test_an_invalid_text_changes_nothing_and_is_kept(headrace_home, edit):
    edit("limits: {max_leases: 3}\n")
    headrace("site", "edit", "laptop")
    before = own_file(headrace_home).read_bytes()
    edit("rolez: {}\n")
    error = refusal("site", "edit", "laptop")
    text, _, why = error.what.partition(": ")
    assert why == "unknown key 'rolez'"
    assert Path(text).read_bytes() == before + b"rolez: {}\n"
    assert "Did you mean 'roles'?" in error.hint
    assert error.hint.endswith(f"{own_file(headrace_home)} is unchanged.")
    assert own_file(headrace_home).read_bytes() == before
    assert [*own_file(headrace_home).parent.iterdir()] == [own_file(headrace_home)]


def test_nothing_is_written_without_a_change_or_an_editor(headrace_home, edit, monkeypatch):
    edit("")
    assert "No change of site 'laptop'" in headrace("site", "edit", "laptop").stdout
    edit("limits: {max_leases: 3}\n", shell="exit 3")
    assert "ended with exit code 3; nothing is changed" in refusal("site", "edit", "laptop").what
    monkeypatch.setenv("VISUAL", "no-editor-of-this-name")
    error = refusal("site", "edit", "laptop")
    assert "'no-editor-of-this-name' ended with exit code 127" in error.what
    assert "EDITOR=nano" in error.hint
    assert "Did you mean 'laptop'" in refusal("site", "edit", "labtop").hint
    assert not own_file(headrace_home).exists()


def test_a_file_of_the_user_is_edited_in_place(headrace_home, edit, tmp_path):
    content = load_site("laptop").model_dump(mode="json", by_alias=True, exclude={"is_fenced"})
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "link.yaml").symlink_to("mine.yaml")
    edit("", shell="sed -i s/disk/dusk/ $1")
    headrace("site", "edit", str(tmp_path / "link.yaml"))
    assert load_site(str(tmp_path / "mine.yaml")).tiers[1].name == "dusk"
    assert (tmp_path / "link.yaml").is_symlink()
