"""Images of registries: pulled by Apptainer into the site's folder before machines are requested.

Source: https://apptainer.org/docs/user/latest/cli/apptainer_pull.html
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import subprocess
import uuid
from pathlib import Path

from headrace.clusters.node_calls import no_check
from headrace.errors import SiteError
from headrace.files.locks import exclusive_while
from headrace.processes.working_folder import python_module
from headrace.recipe.batch import Container

logger = logging.getLogger(__name__)

_LOOPBACK = re.compile(r"[a-z]+://(localhost|127\.0\.0\.1)[:/]")


def on_site(container: Container, site: Path) -> Container:
    """Return a container whose image is a file or folder; `site` is the site's folder."""
    if not container.is_pulled:
        return container
    name = re.sub(r"[^\w.-]+", "_", container.image.partition("://")[2])
    digest = hashlib.sha256(container.image.encode()).hexdigest()[:8]
    return container.model_copy(update={"image": str(site / "images" / f"{name}-{digest}.sif")})


def pull(container: Container, site: Path) -> str:
    """Pull the image of a registry, unless the site has it; a second caller waits for the first.

    Apptainer's progress is logged. Returns the image's file or folder.

    Raises:
        SiteError: The image cannot be pulled.
    """
    image, file = container.image, Path(on_site(container, site).image)
    if not container.is_pulled or file.exists():
        return str(file)
    by_hand = f"`apptainer pull {file} {image}`"
    if shutil.which("apptainer") is None:
        what = f"Image {image} is pulled on this machine, which has no program 'apptainer'"
        raise SiteError(what, f"Install it, or on another machine: {by_hand}.")
    file.parent.mkdir(parents=True, exist_ok=True)
    lock, part = (file.with_name(f".{file.name}.{end}") for end in ("lock", uuid.uuid4().hex[:12]))
    with exclusive_while(lock, no_check):
        try:
            if not file.exists():
                if why := _pull(image, part):
                    raise SiteError(
                        f"Image {image} cannot be pulled: {why}",
                        "Correct `container.image`; log in by `apptainer registry login`. Without "
                        f"a network, pull it elsewhere and copy the file: {by_hand}.",
                    )
                part.replace(file)
        finally:
            part.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)  # another account could not open it
    return str(file)


def _pull(image: str, file: Path) -> str:
    """Return why the image is not in the file; empty if it is."""
    plain = ("--no-https",) if _LOOPBACK.match(image) else ()
    command = ("apptainer", "--nocolor", "pull", *plain, str(file), image)
    logger.warning("Image %s is pulled, once for the site", image)
    line = ""
    with subprocess.Popen(
        python_module("headrace.processes", "--", *command),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
    ) as process:  # fmt: skip
        for line in process.stderr or ():
            logger.warning("%s: %s", image, line.strip())
    return line.strip() if process.returncode else ""
