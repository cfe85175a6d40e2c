"""Texts of others steer no terminal: one function shows what commands print, by any way."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

import pytest

from headrace.cli.console import printable

TABLE = [
    ("\x1b[2J", "\\u001b[2J"),
    ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
    ("\x9b31m", "\\u009b31m"),
    ("done\rfailed", "done\\u000dfailed"),
    ("back\b\b\bspace", "back\\u0008\\u0008\\u0008space"),
    ("\x00", "\\u0000"),
    ("\x7f", "\\u007f"),
    ("\u202egnp.exe", "\\u202egnp.exe"),
    ("\u2066left\u2069", "\\u2066left\\u2069"),
    ("\u200f\u061c", "\\u200f\\u061c"),
    ("\u2028", "\\u2028"),
    ("half \ud83d", "half \\ud83d"),
    ("\udcff", "\\udcff"),
    ("tab\tline\ncsv\r\n", "tab\tline\ncsv\r\n"),
    ("é 日本 🎉 \u200d", "é 日本 🎉 \u200d"),
]

SHOWS = """
import json, sys, typer
from rich.table import Table
from headrace.cli.console import open_console, outlive_readers
from headrace.cli.listing import Listing
outlive_readers()
open_console().print("styled", style="bold red")
for text in json.loads(sys.argv[1]):
    typer.echo(text)
    print(text, file=sys.stderr, flush=True)
    listed = Listing("a", "b")
    listed.add(text, text)
    open_console().print(listed, text)
    open_console().print(text, soft_wrap=True)
"""


@pytest.mark.parametrize(("text", "shown"), TABLE)
def test_what_steers_a_terminal_is_written_as_an_escape(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


def test_no_way_of_printing_lets_it_through():
    texts = [text for text, _ in TABLE[:13]]
    hers, ours = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    command = (sys.executable, "-c", SHOWS, json.dumps(texts))
    with subprocess.Popen(command, stdout=ours, stderr=ours, env=environment) as child:
        os.close(ours)
        found = bytearray()
        with suppress(OSError):  # how a terminal ends
            while part := os.read(hers, 65536):
                found += part
        assert child.wait() == 0, found
    os.close(hers)
    assert b"\x1b[1;31mstyled\x1b[0m" in found
    rest = re.sub(r"\x1b\[[\d;]*m", "", found.decode())  # styles
    assert printable(rest) == rest
    assert {
        text: rest.count(printable(text)) for text in texts if rest.count(printable(text)) < 6
    } == {}
