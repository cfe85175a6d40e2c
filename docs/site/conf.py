"""How Sphinx makes the site: `make site`; decision 0057 says why so.

Pages stay as they are on a forge: what only the site needs, such as its table of contents, is added
here while they are read.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from diagrams import Diagram

project = "headrace"
author = "The headrace authors"
release = metadata.version("headrace")
html_title = f"headrace {release}"

extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/**/*.md", "examples/*.md", "tests/*.md"]
exclude_patterns = [".venv", "build"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "navbar_center": [],
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "footer_start": [],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {"**": ["contents"]}
templates_path = ["templates"]
html_context = {"default_mode": "auto"}
html_favicon = "static/wheel.svg"
html_static_path = ["static"]
html_css_files = ["headrace.css"]
html_copy_source = False

_CONTENTS = {
    "docs/index": {
        "Tutorials": ("tutorials/*.md", "../examples/README.md"),
        "How-to": ("how-to/*.md",),
        "Explanations": ("explanations/*.md", "explanations/decisions/README.md"),
        "Reference": ("reference/*.md", "benchmarks/*.md"),
        "Project": ("../*.md", "../tests/*.md"),
    },
    "docs/explanations/decisions/README": {"Decisions": ("*.md",)},
}
"""Parts of the table of contents with their pages, by the page that it stands on."""


def add_contents(app: Any, docname: str, source: list[str]) -> None:
    """Put a table of contents below a page: pages in the order of its links, then all others."""
    here = Path(app.srcdir, docname).parent
    linked = re.findall(r"\]\(([^():#]+\.md)", source[0])
    first = {(here / each).resolve(): number for number, each in enumerate(reversed(linked))}
    shown = {Path(app.srcdir, docname).with_suffix(".md")}
    for caption, patterns in _CONTENTS.get(docname, {}).items():
        there = ((here / one).parent.resolve().glob(Path(one).name) for one in patterns)
        found = sorted({each for parts in there for each in parts} - shown)
        shown.update(found)
        found.sort(key=lambda page: -first.get(page, -1))
        names = [page.with_suffix("").relative_to(app.srcdir) for page in found]
        entries = "\n".join(f"/{name.as_posix()}" for name in names)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def leave_folders(app: Any, docname: str, source: list[str]) -> None:
    """Replace links to folders of the repository, which have no page, by their text."""
    here = Path(app.srcdir, docname).parent

    def text_of(link: re.Match[str]) -> str:
        return link[1] if (here / link[2]).is_dir() else link[0]

    source[0] = re.sub(r"\[([^\]]+)\]\(([^():#\s]+)\)", text_of, source[0])


def add_entrance(app: Any, _: Exception | None) -> None:
    """`index.html` at the top leads to the first page."""
    page = f"{root_doc}.html"
    lead = f'<link rel="icon" href="data:,"><meta http-equiv="refresh" content="0; url={page}">'
    text = f'<!doctype html>{lead}<title>headrace</title><a href="{page}">headrace</a>\n'
    Path(app.outdir, "index.html").write_text(text)


def setup(app: Any) -> None:
    """What is done beside that."""
    app.add_directive("mermaid", Diagram)
    app.connect("source-read", add_contents)
    app.connect("source-read", leave_folders)
    app.connect("build-finished", add_entrance)
