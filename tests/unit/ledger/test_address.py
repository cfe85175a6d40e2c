"""URLs of the ledger, and what is shown of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import LedgerError
from headrace.ledger.address import default_url, masked, parse_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////home/me/ledger.db", "sqlite:////home/me/ledger.db"),
        ("postgresql://me:secret@db/name", "postgresql://me:***@db/name"),
        ("postgresql://me@db/name", "postgresql://me@db/name"),
        ("postgresql://me:se@cr:et/@db:5432/name", "postgresql://me:***@db:5432/name"),
        ("postgresql://:secret@db/name", "postgresql://:***@db/name"),
        ("postgresql:///n?host=/s&password=secret&x=1", "postgresql:///n?host=/s&password=***&x=1"),
        ("postgresql:///n?sslpassword=secret", "postgresql:///n?sslpassword=***"),
        ("not a url", "not a url"),
    ],
)
def test_passwords_are_masked(url: str, shown: str):
    assert masked(url) == shown


def test_an_at_sign_in_the_query_hides_too_much_rather_than_too_little():
    assert "secret" not in masked("postgresql://me:secret@db/name?options=a@b")


@pytest.mark.parametrize("url", ["postgresql://me:secret@db:port/name", "me:secret@db", ""])
def test_a_url_that_cannot_be_read_keeps_the_password_secret(url: str):
    with pytest.raises(LedgerError, match="cannot be read") as caught:
        parse_url(url)
    assert caught.value.__suppress_context__
    assert "HEADRACE_LEDGER" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_environment_names_the_ledger(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_LEDGER", "postgresql://db/name")
    assert default_url() == "postgresql://db/name"


def test_without_it_the_ledger_lies_in_the_home_folder(
    headrace_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HEADRACE_LEDGER", raising=False)
    assert default_url() == f"sqlite:///{headrace_home}/ledger.db"
