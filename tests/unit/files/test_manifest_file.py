"""The digest of a manifest covers every byte of it."""

import json

import pytest

from headrace.errors import ManifestError
from headrace.files.manifest_file import parse_manifest, sealed, unsealed

CONTENT = {
    "format_version": 2, "name": "é", "mean": 0.30000000000000004, "tiny": 1e-05,
    "inner": {"digest": "0" * 32},
}  # fmt: skip
TEXT = sealed(json.dumps(CONTENT, indent=1, ensure_ascii=False))


def test_the_digest_is_one_more_key_and_the_same_each_time() -> None:
    assert list(json.loads(TEXT)) == [*CONTENT, "digest"]
    assert unsealed(TEXT, "m") == CONTENT
    assert sealed(json.dumps(CONTENT, indent=1, ensure_ascii=False)) == TEXT


def test_every_flipped_bit_breaks_the_seal() -> None:
    """Also one that leaves the JSON value as it was: the exponent's letter, the 17th digit."""
    for bit in range(8 * len(TEXT)):
        flipped = bytearray(TEXT)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ManifestError):
            unsealed(bytes(flipped), "m")


@pytest.mark.parametrize("more", [b" ", b"\n", b"{}"])
def test_nothing_may_follow(more: bytes) -> None:
    with pytest.raises(ManifestError):
        unsealed(TEXT + more, "m")


def test_only_the_first_version_has_no_digest() -> None:
    assert unsealed(b'{"format_version": 1}', "m") == {"format_version": 1}
    with pytest.raises(ManifestError, match="it has no 'digest'"):
        unsealed(b'{"format_version": 2}', "m")


def test_what_is_no_manifest_is_told_in_plain_words() -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(b'{"format_version": 1, "name": 3, "shards": null}', "m")
    for words in (
        "m is damaged, or was changed by hand: its content: ",
        "name: give text (got 3)", "the key 'splits' is",
        "shards: give a list, each a mapping with keys of", "(got null)",
    ):  # fmt: skip
        assert words in caught.value.what
    assert "validation error" not in caught.value.what


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"[" * 100_000, b"\xff\xfe", b'{"a": NaN'])
def test_what_is_no_object_is_named(text: bytes) -> None:
    with pytest.raises(ManifestError, match="m is damaged"):
        unsealed(text, "m")
