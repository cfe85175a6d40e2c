"""A change of an error's words is seen in review: one file holds all messages of the source."""

from __future__ import annotations

from support.messages import FILE, REWRITE, all_messages


def test_the_file_of_messages_is_up_to_date():
    assert FILE.read_text() == all_messages(), f"rewrite it: {REWRITE}"
