"""The table that a check by hand prints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[list[tuple[str, str]]]:
    """Rows of what was checked and what was seen, printed at the module's end."""
    rows: list[tuple[str, str]] = []
    yield rows
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("\n\n| what | seen |\n|---|---|")
        for what, seen in rows:
            print(f"| {what} | {seen} |")
