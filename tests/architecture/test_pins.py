"""A version is pinned only for the Pythons that can install it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from support.sources import ROOT

PYTHONS = [f"3.{minor}.{micro}" for minor in range(10, 14) for micro in range(20)]


def test_each_pin_is_for_pythons_that_can_install_it():
    """Debian 12 has Python 3.11.2, for which some packages are too new by their micro version."""
    pins = [
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    wrong = [
        f"{pin} on {python}: needs {needs}"
        for pin in pins
        if (needs := _required_python(pin)) is not None
        for python in PYTHONS
        if _applies(pin, python) and not needs.contains(python)
    ]
    assert len(pins) > 200
    assert wrong == []


def _required_python(pin: Requirement) -> SpecifierSet | None:
    """Return what the installed version of a pin asks of Python; None if another is installed."""
    try:
        installed = distribution(pin.name)
    except PackageNotFoundError:
        return None
    if not pin.specifier.contains(installed.version):
        return None
    return SpecifierSet(installed.metadata.get("Requires-Python") or "")


def _applies(pin: Requirement, python: str) -> bool:
    minor = python.rpartition(".")[0]
    environment = {"python_version": minor, "python_full_version": python}
    return pin.marker is None or pin.marker.evaluate(environment)
