"""By which address a node is reached: never one that means the asking node itself."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import psutil
import pytest

from headrace.clusters import scheduler
from headrace.errors import LeaseError


@pytest.fixture
def network(monkeypatch):
    """What the machine's default route and interfaces are said to be."""

    def say(routed: str, **interfaces: str) -> None:
        found = {
            name: [
                SimpleNamespace(family=family, address=each)
                for family, each in (
                    (psutil.AF_LINK, "02:42:ac:11:00:02"),
                    (socket.AF_INET, address),
                    (socket.AF_INET6, f"fe80::1%{name}"),
                )
            ]
            for name, address in {"lo": "127.0.0.1", **interfaces}.items()
        }
        monkeypatch.setattr(scheduler, "get_ip", lambda: routed)
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)

    return say


def test_the_default_route_says_it(network):
    network("10.0.0.7", eth0="10.0.0.7", ib0="10.1.0.7")
    assert scheduler.address(None) == "10.0.0.7"


def test_without_a_route_a_name_that_means_loopback_is_not_taken(network):
    """Pains 33: a host name resolves to localhost."""
    network("127.0.1.1", ib0="10.1.0.7")
    assert scheduler.address(None) == "10.1.0.7"


def test_without_a_route_several_interfaces_are_the_users_choice(network):
    """Pains 33."""
    network("127.0.1.1", eth0="10.0.0.7", ib0="10.1.0.7")
    with pytest.raises(LeaseError, match=r"eth0 \(10\.0\.0\.7\), ib0 .*\n.*batch\.interface"):
        scheduler.address(None)


def test_a_machine_alone_has_loopback_only(network):
    network("127.0.1.1")
    assert scheduler.address(None) == "127.0.1.1"


def test_an_interface_by_name():
    """Pains 33."""
    assert scheduler.address("lo") == "127.0.0.1"
    with pytest.raises(LeaseError, match="no network interface 'nosuch0'"):
        scheduler.address("nosuch0")
