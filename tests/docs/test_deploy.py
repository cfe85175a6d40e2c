"""What the control side is deployed with: `deploy/containers`, `compose`, `systemd`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import container_images as images
import pytest
import yaml
from jinja2 import UndefinedError

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "deploy" / "containers"
COMPOSE = ROOT / "deploy" / "compose"
MADE = images.files()


def test_the_files_of_all_builders_are_what_the_description_makes():
    there = {*CONTAINERS.glob("*.Containerfile"), *CONTAINERS.glob("*.def")}
    assert there == MADE.keys()
    for file, content in MADE.items():
        assert file.read_text() == content, (
            "run: python deploy/containers/container_images.py write"
        )


@pytest.mark.parametrize("file", MADE, ids=lambda file: file.name)
def test_an_image_is_pinned_listed_and_keeps_no_cache(file: Path):
    content = MADE[file]
    installs = re.findall(r"pip install .*", content)
    assert all("--no-cache-dir" in each for each in installs)
    pinned = ("-c /src/", "-c /opt/headrace/", "torch==", "cyclonedx-bom==")
    assert all(any(pin in each for pin in pinned) for each in installs)
    assert "python.cdx.json" in content
    assert "rm -rf /tmp/sbom /root/.cache" in content
    for label in ("version", "revision", "licenses"):
        assert f"org.opencontainers.image.{label}" in content
    if file.suffix == ".Containerfile":
        assert content.index("\nRUN ") < content.index("\nUSER 1000:0\n")
        assert re.findall(r"(?m)^USER .*", content)[-1] == "USER 1000:0"


def test_what_is_copied_is_in_the_context_and_nothing_else_is():
    copied = {path for each in images.description()["images"].values() for path in
              each.get("copies", [])}  # fmt: skip
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == copied
    assert all((ROOT / path).exists() for path in copied)


@pytest.mark.parametrize("builder", ["docker", "podman", "buildah", "ch-image", "apptainer"])
def test_an_image_is_made_after_those_that_it_is_made_on(builder: str):
    made = list(images.commands(builder, ["control", "deep"], ["TORCH_INDEX=x"], ["--pull=never"]))
    names = [re.search(r"headrace-(\w+)", " ".join(each)) for each in made]
    assert [name and name[1] for name in names] == ["base", "core", "control", "deep"]
    for words in made:
        assert {"--build-arg=TORCH_INDEX=x", "--pull=never"} <= set(words)
        assert any(word.startswith("--build-arg=REVISION=") for word in words)
        (file,) = (word for word in words if word.endswith((".Containerfile", ".def")))
        assert ROOT / file in MADE


@pytest.mark.parametrize("builder", ["docker", "podman", "ch-image", "apptainer"])
def test_an_image_with_headrace_in_it_is_tried(builder: str):
    words = images.trial(builder, "deep")
    assert "headrace-deep" in " ".join(words)
    assert "headrace run digits" in words[-1]
    assert not images.trial(builder, "base")


def test_an_image_that_is_none_is_named():
    with pytest.raises(SystemExit, match=r"no image 'cuda'\. Valid: base, core, deep, control"):
        list(images.commands("podman", ["cuda"]))


def test_a_name_that_the_description_lacks_is_no_empty_text(monkeypatch: pytest.MonkeyPatch):
    told = images.description()
    del told["images"]["base"]["title"]
    monkeypatch.setattr(images, "description", lambda: told)
    with pytest.raises(UndefinedError):
        images.files()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="install systemd")
def test_systemd_understands_the_unit(tmp_path: Path):
    unit = ROOT / "deploy" / "systemd" / "headrace-airflow.service"
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def compose() -> dict[str, Any]:
    return yaml.safe_load((COMPOSE / "compose.yaml").read_text())


def test_the_compose_file_is_valid():
    schema = ["--builtin-schema", "vendor.compose-spec", str(COMPOSE / "compose.yaml")]
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *schema], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_compose_listens_on_this_machine_alone_and_waits_for_what_it_needs(compose: dict[str, Any]):
    services = compose["services"]
    assert [name for name, each in services.items() if "ports" in each] == ["api-server"]
    assert services["api-server"]["ports"] == ["${HEADRACE_LISTEN:-127.0.0.1:8080}:8080"]
    for name, each in services.items():
        assert name == "migrate" or "healthcheck" in each
        assert all(other in services for other in each.get("depends_on", {}))


def test_a_new_volume_belongs_to_the_user_of_the_image(compose: dict[str, Any]):
    """An engine gives it the owner of the folder in the image, and root where there is none."""
    mounts = [re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", each).split(":")
              for each in compose["services"]["scheduler"]["volumes"]]  # fmt: skip
    assert {name for name, _ in mounts} | {"database"} == compose["volumes"].keys()
    (made,) = re.findall(r"install -d -o headrace .*", MADE[CONTAINERS / "control.Containerfile"])
    assert {folder for _, folder in mounts} == {*re.findall(r"/var/lib/headrace/[\w.]+", made)}
    inside = compose["services"]["scheduler"]["environment"]
    assert inside["AIRFLOW_HOME"] == mounts[0][1]
    assert inside["HEADRACE_HOME"] == "${HEADRACE_HOME:-" + mounts[-1][1] + "}"


def test_secrets_are_random_private_and_all_that_compose_asks_for(tmp_path: Path):
    text = (COMPOSE / "compose.yaml").read_text()
    asked = re.findall(r"\$\{(\w+):\?", text)
    secret = re.findall(r"\$\{(\w*(?:PASSWORD|KEY|SECRET)\w*)", text)
    assert {*asked} == {*secret}
    written = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        script = Path(shutil.copy(COMPOSE / "secrets.sh", folder))
        subprocess.run([script], check=True)
        assert (folder / ".env").stat().st_mode & 0o777 == 0o600
        lines = (folder / ".env").read_text().splitlines()
        written.append(dict(line.split("=", 1) for line in lines))
        again = subprocess.run([script], check=False, capture_output=True, text=True)
        assert (again.returncode, "there already" in again.stderr) == (1, True)
    first, second = written
    assert first.keys() == second.keys() == {*asked}
    for name, value in first.items():
        assert value != second[name]
        assert len(value) >= 44
    assert re.fullmatch(r"[\w-]+", first["POSTGRES_PASSWORD"])  # it stands in URLs
