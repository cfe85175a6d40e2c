"""Images of headrace: their files from one description, and their making by any builder.

    container_images.py write
    container_images.py build --builder podman core control
    container_images.py build --builder ch-image --with TORCH_INDEX=URL deep -- --bind /mirror
    container_images.py build --builder apptainer --base /images/bookworm core

`images.yaml` describes their content; each image is made on the one that it names.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]

_FORMS = {"Containerfile": "{}.Containerfile", "apptainer.def": "{}.def"}
"""Name of each form's files."""

_BUILDERS = {
    "docker": ("docker", "build"),
    "podman": ("podman", "build", "--format=docker"),
    "buildah": ("buildah", "build", "--format=docker"),
    "ch-image": ("ch-image", "build", "--force"),
    "apptainer": ("apptainer", "build"),
}

_TRY = (
    "folder=$(mktemp -d); trap 'rm -r $folder' EXIT; "
    "export PATH=/opt/headrace/bin:$PATH HEADRACE_HOME=$folder/home; "
    "headrace example digits && headrace run digits trainer.max_epochs=1"
)

_RUNNERS = {
    "docker": ("docker", "run", "--rm", "--network=none", "headrace-{}"),
    "podman": ("podman", "run", "--rm", "--network=none", "headrace-{}"),
    "ch-image": ("ch-run", "headrace-{}", "--"),
    "apptainer": ("apptainer", "exec", "headrace-{}.sif"),
}
"""How an image is tried; buildah runs none."""


def description() -> dict[str, Any]:
    """Return the description of the images."""
    return yaml.safe_load((FOLDER / "images.yaml").read_text())


def files() -> dict[Path, str]:
    """Return the text of all files of all builders."""
    described = description()
    environment = Environment(  # no HTML is made
        loader=FileSystemLoader(FOLDER / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["with_arguments"] = _as_apptainer
    found = {}
    for form, file in _FORMS.items():
        template = environment.get_template(f"{form}.jinja")
        for name, image in described["images"].items():
            known = {"made_on": "", "copies": [], **image}
            found[FOLDER / file.format(name)] = template.render(**described, name=name, image=known)
    return found


def chain(name: str) -> tuple[str, ...]:
    """An image and all that it is made on, the lowest first."""
    images = description()["images"]
    if name not in images:
        sys.exit(f"There is no image '{name}'. Valid: {', '.join(images)}.")
    below = images[name].get("made_on")
    return (*chain(below), name) if below else (name,)


def on_base(definition: str, base: str) -> str:
    """Return a definition file of Apptainer that is made on a local image.

    Args:
        definition: The text of the lowest image's file.
        base: Path of a Debian, such as `mmdebstrap` makes.
    """
    source = f"Bootstrap: docker\nFrom: {description()['source']}\n"
    if source not in definition:
        sys.exit("Only the lowest image is made on `--base`")
    return definition.replace(source, f"Bootstrap: localimage\nFrom: {base}\n")


def commands(
    builder: str, names: Sequence[str], arguments: Sequence[str] = (), options: Sequence[str] = (),
    base: str = "",
) -> Iterator[tuple[str, ...]]:  # fmt: skip
    """Commands, run in the repository's root, that make images and those that they are made on.

    With `base`, which is Apptainer's, writes the lowest image's file to this program's folder.
    """
    for name in dict.fromkeys(each for asked in names for each in chain(asked)):
        given = tuple(f"--build-arg={each}" for each in (*_version(), *arguments))
        if builder == "apptainer":
            file = FOLDER / f"{name}.def"
            if base and name == chain(name)[0]:
                file = FOLDER / f"on-base-{name}.local"
                file.write_text(on_base((FOLDER / f"{name}.def").read_text(), base))
            what = (f"headrace-{name}.sif", str(file.relative_to(ROOT)))
        else:
            file = f"{FOLDER.relative_to(ROOT)}/{name}.Containerfile"
            what = ("--tag", f"headrace-{name}", "--file", file, ".")
        yield (*_BUILDERS[builder], *given, *options, *what)


def trial(builder: str, name: str) -> tuple[str, ...]:
    """Command that packs, trains and evaluates in an image; none where there is nothing to try."""
    if builder not in _RUNNERS or "core" not in chain(name):
        return ()
    return (*(word.format(name) for word in _RUNNERS[builder]), "sh", "-c", _TRY)


def _version() -> tuple[str, str]:
    project = (ROOT / "pyproject.toml").read_text()
    version = re.findall(r'(?m)^version = "(.+)"', project)[0]
    words = ("git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"VERSION={version}", f"REVISION={done.stdout.strip() or 'unknown'}"


def _as_apptainer(text: str) -> str:
    return re.sub(r"\$([A-Z_]+)", r"{{ \1 }}", text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ways = parser.add_subparsers(dest="way", required=True)
    ways.add_parser("write", help="write the files of all builders anew")
    build = ways.add_parser("build", help="make images, and those that they are made on")
    build.add_argument("--builder", choices=tuple(_BUILDERS), required=True)
    build.add_argument("--with", dest="arguments", action="append", default=[], metavar="KEY=VALUE")
    build.add_argument("--base", default="", help="local image in place of Docker's (apptainer)")
    build.add_argument("names", nargs="+", metavar="IMAGE")
    return parser


def main(words: Sequence[str]) -> None:
    """Do what the words ask for; those after `--` are options of the builder."""
    end = words.index("--") if "--" in words else len(words)
    asked = _parser().parse_args(words[:end])
    if asked.way == "write":
        for file, content in files().items():
            file.write_text(content)
        return
    if asked.base and asked.builder != "apptainer":
        sys.exit("--base is for --builder apptainer")
    made = commands(asked.builder, asked.names, asked.arguments, words[end + 1 :], asked.base)
    tried = (trial(asked.builder, name) for name in asked.names)
    for command in filter(None, (*made, *tried)):
        sys.stderr.write(f"+ {shlex.join(command)}\n")
        subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
