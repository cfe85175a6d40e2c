"""Figures of the user's own: images, matplotlib's, HTML that can do no harm."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
import torch

from headrace.data.instantiate import Allowed
from headrace.errors import TargetError, UserCodeError
from headrace.evaluation.own_results import own_figures
from headrace.recipe.evaluate import EvaluateSpec
from headrace.report.html import Report, render

CODE = """
from matplotlib.figure import Figure

def errors(results, bins=3):
    figure = Figure()
    figure.add_subplot().hist(results["preds"] - results["label"], bins=bins)
    return figure

def page(results, word):
    return f"<b title='{word}'>{len(results['source'])}</b><script>parent.harm()</script>"

def number(results):
    return 3

def text(results):
    return b"no png"

def broken(results):
    return results["nothing"]
"""

RESULTS = {
    "sample_id": torch.arange(3),
    "source": ["a", "b", "c"],
    "preds": torch.tensor([0.5, 1, 2]),
    "label": torch.tensor([0, 1, 1]),
}


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Allowed]:
    folder = tmp_path_factory.mktemp("code")
    (folder / "figures_of_the_user.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as changed:
        changed.syspath_prepend(folder)
        yield Allowed(listed=(), code=(folder,))


def drawing(name: str, **arguments: object) -> EvaluateSpec:
    target = {"_target_": f"figures_of_the_user.{name}", **arguments}
    return EvaluateSpec(figures={name: target})


class Frames(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[dict[str, str | None]] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "iframe":
            self.frames.append(dict(attrs))


def test_images_and_pages_come_into_the_report(allowed):
    image = own_figures(drawing("errors", bins=5), allowed, RESULTS).figures["errors"]
    assert image.startswith(b"\x89PNG")
    pages = own_figures(drawing("page", word='"quoted"'), allowed, RESULTS).pages
    html = render(
        Report(title="t", lead="", cards=(), figures={"errors": image}, tables=(), pages=pages)
    )
    found = Frames()
    found.feed(html)
    (frame,) = found.frames
    assert frame["sandbox"] is None, "nothing is allowed to it"
    assert "script" not in found.tags
    assert "default-src 'none'" in frame["srcdoc"]
    assert frame["srcdoc"].endswith(pages["page"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("number", "'number' gave int"),
        ("text", "'text' gave NoneType"),
        ("broken", "'broken' raised KeyError: 'nothing'"),
    ],
)
def test_what_is_no_figure_is_named(allowed, name, words):
    with pytest.raises(UserCodeError, match=words) as told:
        own_figures(drawing(name), allowed, RESULTS)
    assert "in broken" in told.value.trace or name != "broken"


def test_only_code_of_the_user_draws():
    for target in ("os.getcwd", "torch.nn.Linear", "matplotlib.pyplot.figure"):
        with pytest.raises(TargetError, match=r"evaluate\.figures\.f"):
            own_figures(
                EvaluateSpec(figures={"f": {"_target_": target}}), Allowed(listed=()), RESULTS
            )
