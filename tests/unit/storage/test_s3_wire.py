"""Answers of HTTP that are plain are understood; all others are left to botocore."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException

import pytest

from headrace.storage.s3_page import parse_page
from headrace.storage.s3_wire import Wire

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def answering(*pieces: bytes) -> Iterator[Wire]:
    """A connection to a server that sends these pieces after the first request, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(65536)
                for piece in pieces:
                    taken.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        wire = Wire("127.0.0.1", server.getsockname()[1], 10.0, None)
        try:
            yield wire
        finally:
            wire.close()
            thread.join()


@pytest.mark.parametrize(
    ("pieces", "reusable"),
    [
        ([OK + b"Content-Length: 5\r\nETag: x\r\n\r\nhello"], True),
        ([OK[:7], OK[7:] + b"content-length:5\r\n\r", b"\nhe", b"llo"], True),
        ([OK + b"Connection: Close\r\nContent-Length: 5\r\n\r\nhello"], False),
        ([OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"], True),
        ([OK + b"Transfer-Encoding: chunked\r\n\r\n2;a=b\r", b"\nhe\r\n3", b"\r\nllo\r\n0\r\n\r\n"],
         True),
    ],
    ids=["whole", "in-pieces", "last", "chunks", "chunks-in-pieces"],
)  # fmt: skip
def test_plain_answers(pieces: list[bytes], reusable: bool) -> None:
    with answering(*pieces) as wire:
        answer = wire.get("/a", {"host": "x"})
        assert (answer.status, answer.content) == (200, b"hello")
        assert wire.is_reusable == reusable


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200",
        OK + b"Content-Length: 5\r\n\r\nhell",
        OK + b"Content-Length: 4\r\n\r\nhello",
        OK + b"\r\nhello",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\nhello\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"nonsense" * 20_000,
    ],
    ids=["empty", "head-cut", "cut", "longer", "no-length", "coded", "chunks-cut", "no-size",
         "negative", "trailers", "old", "no-http"],
)  # fmt: skip
def test_an_answer_that_is_not_plain_is_never_taken_for_content(answer: bytes) -> None:
    """A cut or strange answer must not become a sample."""
    with answering(answer) as wire:
        with pytest.raises((HTTPException, OSError)):
            wire.get("/a", {"host": "x"})
        assert not wire.is_reusable


PAGE = (
    b'<?xml version="1.0"?><ListBucketResult%s><IsTruncated>%s</IsTruncated>'
    b"<EncodingType>url</EncodingType><Contents><Key>a+b%%2B/%%C3%%BC</Key><Size>7</Size>"
    b"<ETag>&quot;e&quot;</ETag></Contents>%s</ListBucketResult>"
)
SPACE = b' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
TOKEN = b"<NextContinuationToken>next</NextContinuationToken>"


@pytest.mark.parametrize("space", [SPACE, b""], ids=["in-the-name-space", "without"])
def test_a_page_of_a_listing(space: bytes) -> None:
    page = parse_page(PAGE % (space, b"false", b""))
    assert page is not None
    assert (page.files, page.token) == ([("a b+/ü", 7, '"e"')], "")
    page = parse_page(PAGE % (space, b"true", TOKEN))
    assert page is not None
    assert page.token == "next"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        (PAGE % (SPACE, b"false", b""))[:-9],
        PAGE % (SPACE, b"true", b""),
        b"<Error><Code>SlowDown</Code></Error>",
        b"<ListBucketResult></ListBucketResult>",
    ],
    ids=["empty", "cut", "no-token", "error", "nothing"],
)
def test_a_page_that_is_cut_is_no_short_listing(content: bytes) -> None:
    """Files would be missing from the dataset, and nobody would know."""
    assert parse_page(content) is None
