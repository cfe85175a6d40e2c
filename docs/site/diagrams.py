"""Diagrams in Mermaid's words, as pictures that `scripts/diagrams.py` has drawn of them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

FOLDER = Path(__file__).parents[1] / "images" / "diagrams"


def picture_of(text: str) -> Path:
    """Where the picture of a diagram lies; another text has another one."""
    name = hashlib.sha256(text.strip().encode()).hexdigest()[:12]
    return FOLDER / f"{name}.svg"


class Diagram(SphinxDirective):
    """A fence `mermaid`: the picture in its place, named by the diagram's `accTitle`."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Show the picture."""
        text = "\n".join(self.content)
        picture = picture_of(text)
        title = re.search(r"^ *accTitle: *(.+)$", text, re.M)
        if title is None:
            raise self.error("A diagram has a line `accTitle: …`, which says what it shows.")
        if not picture.exists():
            raise self.error("The picture of this diagram is missing; run scripts/diagrams.py.")
        path = Path("/", picture.relative_to(self.env.srcdir)).as_posix()
        return [nodes.image(uri=path, alt=title[1], classes=["diagram"])]
