"""Draws the diagrams of the docs anew, one SVG each, by Mermaid in a headless Chromium.

Mermaid comes from the npm registry, this version with this checksum; of it nothing is kept.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "site"))

from diagrams import FOLDER, picture_of  # noqa: E402

PACKAGE = "mermaid@12.3.0"
SHA512 = "4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw=="
_FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.M | re.S)
_DRAW = """async text => {
    mermaid.initialize({startOnLoad: false, deterministicIds: true, fontFamily: "sans-serif"});
    const place = document.createElement("div");
    place.innerHTML = (await mermaid.render("diagram", text)).svg;
    return new XMLSerializer().serializeToString(place.firstChild);
}"""
"""Drawn, and written as XML, which an image must be."""


def mermaid(folder: Path) -> str:
    """Mermaid's script, fetched into a folder."""
    command = ["npm", "pack", "--silent", PACKAGE]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    archive = folder / done.stdout.strip()
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != SHA512:
        sys.exit(f"{PACKAGE} has the checksum {found}, not {SHA512}: nothing was drawn")
    with tarfile.open(archive) as packed:
        script = packed.extractfile("package/dist/mermaid.min.js")
        if script is None:
            sys.exit(f"{PACKAGE} has no dist/mermaid.min.js")
        return script.read().decode()


def draw(page: Page, texts: list[str]) -> None:
    """Write the pictures; those of diagrams that are gone are removed."""
    wanted = {picture_of(text): text for text in texts}
    for path in set(FOLDER.glob("*.svg")) - wanted.keys():
        path.unlink()
    FOLDER.mkdir(exist_ok=True)
    for path, text in wanted.items():
        path.write_text(page.evaluate(_DRAW, text) + "\n")
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")


def main() -> None:
    """Draw all there are."""
    pages = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]
    texts = [found for page in pages for found in _FENCE.findall(page)]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(content=mermaid(Path(folder)))
        draw(page, texts)
        browser.close()


if __name__ == "__main__":
    main()
