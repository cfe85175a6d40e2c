"""The site: builds without a warning, asks no other host, and is legible for all."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from support.browser import page

__all__ = ["page"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_AXE = (ROOT / "tests" / "support" / "vendor" / "axe.min.js").read_text()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="Sphinx 9 needs Python 3.11"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built anew."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [str(ROOT / "scripts" / "site.sh"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """Where the site is served on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_page_is_in_the_site_and_in_its_contents(site: Path):
    contents = (site / "docs" / "index.html").read_text()
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")]
    assert len(pages) > 50
    assert [page for page in pages if not (site / "docs" / page).is_file()] == []
    shown = [
        page for page in pages if page.parent.name != "decisions" and page.name != "index.html"
    ]
    assert [page for page in shown if f'href="{page}"' not in contents] == []


@pytest.mark.browser
def test_the_site_is_read_without_a_network(url: str, page: Page):
    """Whatever asks another host fails the fixture; the search is done by the browser."""
    told: list[str] = []
    page.on("console", lambda each: told.append(each.text) if each.type == "error" else None)
    page.on("pageerror", lambda error: told.append(str(error)))
    page.goto(url)
    page.wait_for_url("**/docs/index.html")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("searchbox").fill("walltime")
    page.keyboard.press("Enter")
    found = page.locator("#search-results a", has_text="Commands")
    expect(found.first).to_be_visible()
    page.goto(f"{url}/docs/explanations/architecture.html")
    diagrams = page.get_by_role("img", name="From raw files by pack")
    assert diagrams.evaluate("image => image.naturalWidth") > 200
    assert told == []


@pytest.mark.browser
@pytest.mark.parametrize("name", ["index", "how-to/run-suites", "reference/site"])
def test_pages_are_legible_for_everybody(name: str, url: str, page: Page):
    """Light and wide, dark and narrow."""
    for theme, size in ("light", (1440, 900)), ("dark", (390, 844)):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.goto(f"{url}/docs/{name}.html")
        beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert beyond <= 0, (name, size)
        page.evaluate(_AXE)
        found = page.evaluate("axe.run(document)")["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == [], (theme, size)
