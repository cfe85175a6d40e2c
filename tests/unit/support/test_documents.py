"""The reader of the documentation notices what a page gets wrong."""

from __future__ import annotations

import pytest

from support.documents import Reader, blocks, first_missing

PAGE = """
Text, and a block that nobody runs:

```console
$ false
```

<!-- file: ~/notes/a.txt -->
```text
one
two
```

<!-- test -->
```console
$ cd notes
$ cat a.txt
one
```

<!-- test: exit 3 -->

```console
$ echo in $(basename $PWD); exit 3
in …
```
"""


@pytest.fixture
def page(tmp_path):
    return tmp_path / "page.md"


def follow(page, text):
    page.write_text(text)
    reader = Reader(home=page.parent)
    for block in blocks(page):
        reader.follow(block)
    return reader


def test_a_right_page_is_followed_to_its_end(page):
    assert follow(page, PAGE).folder == page.parent / "notes"
    assert [(block.do, block.how) for block in blocks(page)] == [
        ("file", "~/notes/a.txt"),
        ("test", ""),
        ("test", "exit 3"),
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("exit 3\nin …", "exit 0\nin …", "exit code 0, not 3, line 21"),
        ("$ cat a.txt\none", "$ cat a.txt\nthree", "the output is not what line 14"),
        ("$ cd notes", "$ cd nowhere", "exit code 1, not 0, line 14"),
    ],
)
def test_a_wrong_page_is_complained_about(right, wrong, complaint, page):
    assert right in PAGE
    with pytest.raises(AssertionError, match=complaint):
        follow(page, PAGE.replace(right, wrong))


@pytest.mark.parametrize(
    ("lines", "output", "missing"),
    [
        (["a  b", "c"], "x a b\ny\nc\n", None),
        (["a b"], "a    b", None),
        (["a b"], "ab", "a b"),
        (["a", "b"], "b\na\n", "b"),
        (["a … d"], "a b\nc d", None),
        (["a…d"], "ad", None),
        (["a … d", "e"], "a  d\ne d", None),
        (["a … d"], "a d", "a … d"),  # two gaps, of which there is one
        (["(1+1) …", "[x]"], "(1+1) is\n[x]", None),
        ([*["… 1 … 2 … 3 …"] * 8, "end"], "0 1 2 3 4\n" * 3000, "end"),  # without going back
    ],
)
def test_lines_come_in_order(lines, output, missing):
    assert first_missing(lines, output) == missing
