"""Markdown pages as something that can be run.

A comment above a fenced block says what is done with it:

- `<!-- test -->`: run the lines that begin with `$ `; the lines below each must come in its output,
  in order, `…` standing for anything. `<!-- test: exit 2 -->` expects that exit code.
- `<!-- file: PATH -->`: write the block to that file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NEEDS_SLURM = "<!-- needs: slurm -->"
"""On pages that are followed beside the small Slurm, by the tests that have one."""

_BLOCK = re.compile(
    r"^<!-- (?P<do>test|file)(?:: (?P<how>[^\n]*?))? -->\n+```\w*\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block with an instruction."""

    line: int
    do: str
    how: str
    text: str

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Commands with the lines of output that the page shows for them."""
        parts = re.split(r"^\$ ", self.text, flags=re.M)
        assert parts[0] == "", f"line {self.line}: a console block begins with '$ '"
        for part in parts[1:]:
            command, *output = part.rstrip("\n").split("\n")
            yield command, output


def blocks(page: Path) -> list[Block]:
    """Blocks of a page that have an instruction, from top to bottom."""
    text = page.read_text()
    return [
        Block(
            text.count("\n", 0, match.start()) + 1, match["do"], match["how"] or "", match["text"]
        )
        for match in _BLOCK.finditer(text)
    ]


@dataclass
class Reader:
    """Somebody who follows a page word by word, in a home folder of their own."""

    home: Path
    timeout_s: float = 240.0
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.home

    def follow(self, block: Block) -> None:
        """Do what a block says; complain with the page's line and all output."""
        if block.do == "file":
            path = self.home / block.how.removeprefix("~/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
            return
        expected_code = int(block.how.removeprefix("exit ") or 0)
        for command, lines in block.commands():
            code, output = self._run(command)
            story = f"line {block.line}: $ {command}\n{output}"
            assert code == expected_code, f"exit code {code}, not {expected_code}, {story}"
            missing = first_missing(lines, output)
            assert missing is None, f"the output is not what {story}\nIt lacks the line: {missing}"

    def _run(self, command: str) -> tuple[int, str]:
        after = self.home / ".folder-after-command"
        script = f"trap 'code=$?; pwd > \"{after}\"; exit $code' EXIT\n{command}\n"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=self.timeout_s,
            check=False,
        )
        self.folder = Path(after.read_text().strip())
        return done.returncode, done.stdout

    def _environment(self) -> dict[str, str]:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "AIRFLOW"))}
        marks = {k: v for k, v in os.environ.items() if k == "HEADRACE_TEST_ID"}
        return {**kept, **marks, "HOME": str(self.home), "PATH": programs, "COLUMNS": "200"}


def first_missing(lines: list[str], output: str) -> str | None:
    """Return the first line of a page that the rest of the output does not have; None if all come.

    Each part between two `…` is searched once, behind the part before it: of a part the match that
    begins first ends first, so no other choice finds more.
    """
    position = 0
    for line in lines:
        for part in " ".join(line.split()).split("…"):
            # how wide a column is depends on its values
            words = r"\s+?".join(re.escape(word) for word in part.split(" "))
            found = re.compile(words).search(output, position)
            if found is None:
                return line
            position = found.end()
    return None
