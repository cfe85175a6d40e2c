"""Tables as people write them: exact values, quarantine, or a named error.

Each table is packed as rows that are samples, and as an index of files.
"""

from __future__ import annotations

import gzip
import json
import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.packing.sources import lines as blocks_of_lines
from support.odd_inputs import OddTable, csv_of, jsonl_of, parquet_of
from support.source_files import npz

NONE = "it has no value"
NINE = [f"{n}.5" for n in range(9)]
FLOATS = [n + 0.5 for n in range(9)]
WORDS = ["a\u2028b", "\U0001f600", "\u202eabc", "\ta b ", "x\u00a0"]


def cells(name: str, texts: list[str], values: list[object], **more: object) -> OddTable:
    """A column of CSV."""
    content = csv_of(texts, more.pop("delimiter", ","))  # type: ignore[arg-type]
    return OddTable(name=f"csv {name}", file="i.csv", content=content, values={"x": values}, **more)  # type: ignore[arg-type]


def raw(name: str, content: str | bytes, **more: object) -> OddTable:
    """A CSV file as it is written."""
    return OddTable(name=f"csv {name}", file="i.csv", content=content, **more)  # type: ignore[arg-type]


def lines(name: str, content: str, **more: object) -> OddTable:
    """A JSONL file as it is written."""
    return OddTable(name=f"jsonl {name}", file="i.jsonl", content=content, **more)  # type: ignore[arg-type]


def values(name: str, texts: list[str], found: list[object], **more: object) -> OddTable:
    """A column of JSONL."""
    return lines(name, jsonl_of(texts), values={"x": found}, **more)


def column(name: str, array: pa.Array, found: list[object], **more: object) -> OddTable:
    """A column of Parquet."""
    content = parquet_of(array)
    return OddTable(
        name=f"parquet {name}", file="i.parquet", content=content, values={"x": found}, **more  # type: ignore[arg-type]
    )  # fmt: skip


def same(*texts: str) -> tuple[list[str], list[object]]:
    """Cells that are read as they are written."""
    return [*texts], [*texts]


NUMBERS = [
    cells("minus zero", ["-0.0", "1.5"], [-0.0, 1.5]),
    cells("underscores", *same("1_000", "2_000")),
    cells("hexadecimal", *same("0x1F", "0x20")),
    cells("exponents", ["1e5", "2E-3"], [1e5, 2e-3]),
    cells("points at an end", ["5.", ".5"], [5.0, 0.5]),
    cells("spaces around", [" 7 ", "8"], [7, 8]),
    cells("spaces inside", *same("1 000", "2 000")),
    cells("digits of other scripts", *same("\u0663", "\u0664")),
    cells("infinite and not a number", ["inf", "-inf", "nan"], [math.inf, -math.inf, math.nan]),
    cells("overflow of one", [*NINE, "1e400"], FLOATS, left=["1e400"]),
    cells("overflow of half", *same("1E400", "1.5")),
    cells("beyond 64 bits", *same(*(str(2**64 + n) for n in range(3)))),
    cells("the ends of 64 bits", [str(-(2**63)), str(2**63 - 1)], [-(2**63), 2**63 - 1]),
    cells("beyond float64", [*NINE, "9007199254740993"], FLOATS, left=["9007199254740993"]),
    cells("whole and fractions", ["1", "0.5", "2"], [1.0, 0.5, 2.0]),
    cells("leading zeros", *same("007", "010")),
    cells("dates", *same("2026-01-01", "2026-01-02")),
    cells("times", *same("2026-01-01 12:30:00", "2026-01-02 00:00:00")),
    cells("decimal commas", ["1,5", "2"], [1.5, 2.0], delimiter=";"),
    cells("decimal commas of tabs", ["1,5", "2,25"], [1.5, 2.25], delimiter="\t"),
    cells("commas and points", *same("1,5", "2.5"), delimiter=";"),
    cells("commas of thousands", ['"1,500"', '"2,000"'], ["1,500", "2,000"], delimiter=";"),
    cells("a comma of fractions and one of thousands", ["1,5", "2,000"], [1.5, 2.0], delimiter=";"),
    cells("two signs", *same("++7", "+-7")),
    cells("missing numbers", ["1", "NA", "", "N/A", "null", "4"], [1, 4], left=[NONE] * 4),
    cells("names of missing values in text", ["NA", "b", ""], ["NA", "b"], left=[NONE]),
    cells("true and false", ["true", "false"], [True, False]),
    cells("true and numbers", *same("true", "1")),
    cells("one mistake in ten", [*map(str, range(9)), "abc"], [*range(9)], left=["'abc'"]),
    cells("three mistakes in ten", *same(*map(str, range(7)), "a", "b", "c")),
]

FORMS = [
    raw("numbers as names", "0,1\n4,5\n", values={"0": [4], "1": [5]}, as_index=False),
    raw("a slash in a name", "km/h,path\n1,0.npy\n", values={"km.h": [1]}),
    raw("BOM before the header, which comes again",
        "\ufeffpath,b\n0.npy,v\n\ufeffpath,b\n", values={"b": ["v"]}, left=["repeats the header"],
        index_error=["repeats the header"]),
    raw("paths that no file can have", f"path,x\n{'y' * 400},1\n../../x,2\n", values={"x": [1, 2]},
        as_index=False),
    raw("CR", "path,x\r0.npy,1\r1.npy,2\r", values={"x": [1, 2]}),
    raw("CRLF", "path,x\r\n0.npy,1\r\n1.npy,2\r\n", values={"x": [1, 2]}),
    raw("mixed line ends", "path,x\r\n0.npy,1\r1.npy,2\n", values={"x": [1, 2]}),
    raw("no last line end", "path,x\n0.npy,1\n1.npy,2", values={"x": [1, 2]}),
    raw("BOM", "\ufeffpath,x\n0.npy,1\n1.npy,2\n", values={"x": [1, 2]}),
    raw("one empty line first", "\npath,x\n0.npy,1\n1.npy,2\n", values={"x": [1, 2]}),
    raw("empty lines", "\n\npath,x\n\n0.npy,1\n\r\n1.npy,2\n\n\n", values={"x": [1, 2]}),
    raw("sep", "sep=;\npath;x\n0.npy;1\n1.npy;2\n", values={"x": [1, 2]}),
    raw("only a header", "path,x\n", error=["no row"], as_index=False),
    raw("empty", "", error=["empty"], as_index=False),
    raw("only line ends", "\n\n\n", error=["i.csv"], as_index=False),
    raw("one column", "x\n1\n2\n", values={"x": [1, 2]}, as_index=False),
    raw(
        "quotes",
        'path,x\n0.npy,"a, ""b""\nc"\n1.npy,"d\re"\n"2.npy",f"g\n',
        values={"x": ['a, "b"\nc', "d\re", 'f"g']},
    ),
    raw("delimiters in the quotes of the header", 'path;"x,y,z"\n0.npy;1\n', values={"xyz": [1]},
        dataset={"fields": {"xyz": "x,y,z"}}),
    raw("an open quote", 'path,x\n0.npy,1\n1.npy,"2\n', error=["line 3", "quote"]),
    raw("index of pandas", ",path,x\n0,0.npy,1\n1,1.npy,2\n", values={"x": [1, 2]}),
    raw("index of pandas with a name", "Unnamed: 0,path,x\n0,0.npy,1\n1,1.npy,2\n",
        values={"x": [1, 2]}),
    raw("an empty last column", "path,x,\n0.npy,1,\n1.npy,2,\n", values={"x": [1, 2]}),
    raw("a last column without name", "path,x,\n0.npy,1,7\n1.npy,2,8\n", error=["line 2"]),
    raw("a column twice", "path,x,x\n0.npy,1,7\n1.npy,2,8\n", error=["i.csv", "'x'"]),
    raw("a row too short", "path,x\n0.npy,1\n1.npy\n2.npy,3\n", values={"x": [1, 3]},
        left=["line 3"], index_error=["line 3"]),
    raw("a row too long", "path,x\n0.npy,1\n1.npy,2,7\n2.npy,3\n", values={"x": [1, 3]},
        left=["line 3"], index_error=["line 3"]),
    raw("a row with empty cells more", "path,x\n0.npy,1\n1.npy,2,,\n", values={"x": [1, 2]}),
    raw("Latin-1", "path,x\n0.npy,a\n1.npy,\u00e9\n".encode("latin-1"),
        error=["line 3", "0xe9", "dataset.encoding"]),
    raw("Latin-1 in the header", "path,\u00e9\n0.npy,a\n".encode("latin-1"),
        error=["line 1", "0xe9", "dataset.encoding"]),
    raw("Latin-1 that is asked for", "path,x\n0.npy,\u00e9\n".encode("latin-1"),
        values={"x": ["\u00e9"]}, dataset={"encoding": "latin-1"}),
    raw("UTF-16", csv_of(["a", "b"]).encode("utf-16"), error=["UTF-16", "dataset.encoding"]),
    raw("UTF-16 without BOM", csv_of(["a"]).encode("utf-16-le"), error=["dataset.encoding"]),
    raw("UTF-16 that is asked for", csv_of(["a", "b"]).encode("utf-16"),
        values={"x": ["a", "b"]}, dataset={"encoding": "utf-16"}),
    raw("gzip", gzip.compress(csv_of(["1", "2"]).encode()), error=["i.csv", "gzip"]),
    raw("zip", npz(x=1), error=["i.csv", "zip"]),
    raw("a long header", f'path,{"y" * 200_000},x\n0.npy,1,2\n', values={"x": [2]},
        dataset={"fields": {"x": "x"}}),
    raw("ten thousand columns",
        ",".join(["path", "x", *(f"c{n}" for n in range(10_000))]) + "\n0.npy,1" + ",2" * 10_000,
        values={"x": [1]}, dataset={"fields": {"x": "x"}}),
    cells("a megabyte", *same("a" * 2**20, "b")),
    cells("texts of all kinds", *same(*WORDS)),
    cells("NUL", *same("a\0b", "c")),
]  # fmt: skip

JSON = [
    values("whole numbers, then fractions", ["0", "0.7", "1.9"], [0.0, 0.7, 1.9]),
    values("fractions that are whole", ["1.0", "2"], [1.0, 2.0]),
    values("beyond 64 bits", ["18446744073709551617", "3"], ["18446744073709551617", "3"],
           types={"x": "json"}),
    values("unsigned 64 bits", ["18446744073709551615", "3"], ["18446744073709551615", "3"],
           types={"x": "json"}),
    values("beyond float64", [*NINE, "9007199254740993"], FLOATS, left=["9007199254740993"]),
    values("overflow", [*NINE, "1e400"], FLOATS, left=["line 10"]),
    values("not a number", ["NaN", "1.5"], [math.nan, 1.5]),
    values("true and numbers", ["true", "1"], ["true", "1"],
           types={"x": "json"}),
    values("text and numbers", ['"a"', "5"], ['"a"', "5"],
           types={"x": "json"}),
    values("null", ["1", "null", "3"], [1, 3], left=[NONE]),
    values("null texts", ['"a"', "null", '""'], ["a", ""], left=[NONE]),
    values("objects", ['{"a": 1}', '{"b": [1]}'], ['{"a": 1}', '{"b": [1]}'], types={"x": "json"}),
    values("lists of texts", ['["a"]', "[]"], ['["a"]', "[]"], types={"x": "json"}),
    values("lists of numbers", ["[1, 2]", "[3, 4.5]"], [[1.0, 2.0], [3.0, 4.5]], as_index=False),
    values("texts of all kinds", [json.dumps(word) for word in WORDS], [*WORDS]),
    values("NUL", ['"a\\u0000b"', '"c"'], ["a\0b", "c"]),
    values("a lone surrogate", ['"a"', '"b\\ud83d"', '"c"'], ["a", "c"], left=["line 2"]),
    lines("a lone surrogate in a class", '{"x": 1, "k": "\\ud83d"}\n{"x": 2, "k": "a"}\n',
          values={"x": [2], "label": ["a"]}, types={"label": "int64"}, left=["k: it has no value"],
          dataset={"labels": "field", "label_field": "k"}, as_index=False),
    values("lists of times", ['["2024-01-01T00:00:00Z"]', '["2024-01-02"]'],
           ['["2024-01-01T00:00:00Z"]', '["2024-01-02"]'], types={"x": "json"}),
    values("lists that are nested 600 times", [*["1.5"] * 20, "[" * 600 + "]" * 600], [1.5] * 20,
           left=["is not float64"]),
    values("a pair of surrogates", ['"\\ud83d\\ude00"'], ["\U0001f600"]),
    values("a key twice", ["1", '2, "x": 3', "4"], [1, 4], left=["line 2"], as_index=False),
    values("deep nesting", ["1", "[" * 20_000 + "]" * 20_000, "3"], [1, 3], left=["line 2"],
           index_error=["line 2"]),
    values("a trailing comma", ["1", "2,", "3"], [1, 3], left=["line 2"], index_error=["line 2"]),
    values("lists of truth", ["[true]", "[false]"], [[True], [False]], types={"x": "bool"},
           as_index=False),
    values("lists of numbers and of truth", [*["[1, 2]"] * 9, "[true, false]"], [[1.0, 2.0]] * 9,
           left=["line 10: [True, False] is not array"], as_index=False),
    values("lists of truth and of numbers", [*["[true]"] * 9, "[1]"], [[True]] * 9,
           types={"x": "bool"}, left=["line 10: [1] is not array of bool"], as_index=False),
    values("as many lists of numbers as of truth", ["[1]", "[true]"], ["[1]", "[true]"],
           types={"x": "json"}),
    lines("a slash in a key", '{"path": "0.npy", "a/b": 1, "c": {"d": 2}}\n',
          values={"a.b": [1], "c": ['{"d": 2}']}, types={"c": "json"}),
    lines("half a surrogate in a key", '{"path": "0.npy", "x": 1}\n{"x": 2, "\\ud83d": 3}\n',
          values={"x": [1]}, left=["line 2: the key '\\ud83d' holds half of a surrogate pair"],
          index_error=["line 2: the key"], num_rows=1),
    lines("half a surrogate in a key twice",
          '{"path": "0.npy", "x": 1}\n{"\\ud83d": 2, "\\ud83d": 3}\n',
          values={"x": [1]}, left=["line 2: the key '\\ud83d' is there twice"],
          index_error=["line 2: the key"], num_rows=1),
    lines("a missing key", '{"path": "0.npy", "x": 1}\n{"path": "1.npy"}\n', values={"x": [1]},
          left=[NONE]),
    lines("one array", '[{"path": "0.npy", "x": 1}, {"path": "1.npy", "x": 2}]',
          error=["i.jsonl", "jq"]),
    lines("an array over lines", '[\n{"path": "0.npy", "x": 1},\n{"path": "1.npy", "x": 2}\n]\n',
          error=["i.jsonl", "jq"]),
    lines("no object", '{"path": "0.npy", "x": 1}\n5\n', values={"x": [1]}, left=["line 2"],
          index_error=["line 2"], num_rows=1),
    lines("a comment", '{"path": "0.npy", "x": 1}\n// more\n', values={"x": [1]}, left=["line 2"],
          index_error=["line 2"], num_rows=1),
    lines("BOM", "\ufeff" + jsonl_of(["1", "2"]), values={"x": [1, 2]}),
    lines("BOM at a line", jsonl_of(["1"]) + '\ufeff{"path": "1.npy", "x": 2}\n',
          values={"x": [1, 2]}),
    lines("empty lines", "\n" + jsonl_of(["1", "2"]).replace("\n", "\n\n"), values={"x": [1, 2]}),
    lines("CRLF", jsonl_of(["1", "2"]).replace("\n", "\r\n"), values={"x": [1, 2]}),
    lines("CR", jsonl_of(["1", "2"]).replace("\n", "\r"), values={"x": [1, 2]}),
]  # fmt: skip

HEADERS = [
    raw("comments before the header", "# made by us\n#, in May\npath,x\n0.npy,1\n1.npy,2\n",
        values={"x": [1, 2]}, logged="# made by us"),
    raw("a comment before one column", "# made by us\nx\n1\n", values={"x": [1]}, as_index=False),
    raw("a header that begins as a comment", "#id,path,x\n7,0.npy,1\n", values={"x": [1]},
        dataset={"fields": {"x": "x"}}),
    raw("the header again", "path,x\n0.npy,1\npath,x\n1.npy,2\n", values={"x": [1, 2]},
        left=["line 3: it repeats the header"], index_error=["line 3", "repeats the header"]),
    raw("the header again, of texts", "path,x\r\n0.npy,a\r\npath,x\r\n", values={"x": ["a"]},
        left=["line 3: it repeats the header"], index_error=["line 3"]),
    raw("quotes escaped by backslashes", 'path,x\n0.npy,"b"\n1.npy,"say \\"hi\\", you"\n',
        error=["line 3", "backslash", "escape"]),
    raw("a last quote escaped by a backslash", 'path,x\n0.npy,"b"\n1.npy,"say \\""\n',
        error=["line 3", "backslash"]),
    raw("JSON escaped by backslashes", 'path,x\n0.npy,"{\\"a\\": \\"b\\"}"\n',
        error=["line 2", "backslash"]),
    raw("a backslash at the end of a value", 'path,x\n0.npy,"C:\\dir\\"\n1.npy,"b"\n',
        values={"x": ["C:\\dir\\", "b"]}),
    raw("a comma more than the header has", "path,x\n0.npy,a,b\n1.npy,c\n", values={"x": ["c"]},
        left=["line 2: it has 3 values, the header names 2 columns; quote values that hold a ','"],
        index_error=["line 2"], num_rows=2),
    cells("numbers of 5,000 digits", *same("1" * 5000, "2" * 5000)),
    cells("one of 5,000 digits", [*map(str, range(9)), "1" * 5000], [*range(9)], left=["is not"]),
    cells("fractions of 5,000 digits", ["0." + "3" * 5000, "1.5"], [0.3333333333333333, 1.5]),
    values("numbers of 5,000 digits", ["1" * 5000, "2" * 5000], ["1" * 5000, "2" * 5000],
           types={"x": "json"}),
    values("overflows", ["1e400", "2e400"], ["1e400", "2e400"], types={"x": "json"}),
    values("lists with null", ["[1, null]", "[2]", "[null]"], ["[1, null]", "[2]", "[null]"],
           types={"x": "json"}),
    lines("lists with null beside objects",
          '{"path": "0.npy", "x": [1, null], "y": {"a": 1}}\n'
          '{"path": "1.npy", "x": [null], "y": {}}\n',
          values={"x": ["[1, null]", "[null]"]}, types={"x": "json"},
          dataset={"fields": {"x": "x"}}),
    values("truth and numbers in lists", ["[true, 2]", "[1, 2]"], ["[true, 2]", "[1, 2]"],
           types={"x": "json"}),
    values("lists beyond float64", ["[9007199254740993, 0.5]", *["[1, 2]"] * 9], [[1.0, 2.0]] * 9,
           left=["whole numbers that float64"], as_index=False),
    values("missing JSON", ['{"a": 1}', "null"], ['{"a": 1}', '""'], types={"x": "json"},
           dataset={"missing": {"x": ""}}),
    values("missing JSON as an object", ['{"a": 1}', "null"], ['{"a": 1}', '{"a": 0}'],
           types={"x": "json"}, dataset={"missing": {"x": '{"a": 0}'}}),
    OddTable(name="tsv of as many commas as tabs", file="i.tsv",
             content="path\tx, in m\n0.npy\t1\n1.npy\t2\n", values={"x": [1, 2]},
             dataset={"fields": {"x": "x, in m"}}),
    OddTable(name="tsv of more commas than tabs", file="i.tsv",
             content="path\tx, in m, of a, b\n0.npy\t1\n", values={"x": [1]},
             dataset={"fields": {"x": "x, in m, of a, b"}}),
]  # fmt: skip

DAYS = pa.array([0, 19723], pa.date32())
INDEX = {"pandas": json.dumps({"index_columns": ["__index_level_0__", "who"], "columns": []})}


def indexed(path: Path) -> None:
    """As pandas writes a table with an index."""
    table = {
        "path": ["0.npy", "1.npy"],
        "x": [1, 2],
        "__index_level_0__": [0, 1],
        "who": ["a", "b"],
    }
    parquet.write_table(pa.table(table).replace_schema_metadata(INDEX), path)


COLUMNS = [
    column("decimals", pa.array([Decimal("1.50"), None]), ["1.50"], left=[NONE]),
    column("days", DAYS, ["1970-01-01", "2024-01-01"]),
    column("days of a dictionary", DAYS.dictionary_encode(), ["1970-01-01", "2024-01-01"]),
    column("nanoseconds in a zone", pa.array([1], pa.timestamp("ns", "Europe/Berlin")),
           ["1970-01-01 01:00:00.000000001+0100"]),
    column("lists of nanoseconds", pa.array([[1], []], pa.list_(pa.timestamp("ns"))),
           ['["1970-01-01 00:00:00.000000001"]', "[]"], types={"x": "json"}),
    column("objects of decimals", pa.array([{"a": Decimal("1.5"), "b": None}]),
           ['{"a": "1.5", "b": null}'], types={"x": "json"}),
    column("a dictionary of numbers", pa.array([5, 7, 5]).dictionary_encode(), [5, 7, 5]),
    column("a dictionary of texts", pa.array(["a", None, "a"]).dictionary_encode(), ["a", "a"],
           left=[NONE]),
    column("texts of all kinds", pa.array(WORDS, pa.large_string()), [*WORDS]),
    column("missing numbers", pa.array([1.5, None, math.nan]), [1.5, math.nan], left=[NONE]),
    column("missing whole numbers", pa.array([2**53 + 1, None]), [2**53 + 1], left=[NONE]),
    column("missing truth", pa.array([True, None]), [True], left=[NONE]),
    column("objects", pa.array([{"a": 1}, None]), ['{"a": 1}'], types={"x": "json"}, left=[NONE]),
    OddTable(name="parquet index of pandas", file="i.parquet", content=indexed,
             values={"x": [1, 2]}),
    OddTable(name="parquet views of texts", file="i.parquet",
             content=parquet_of(pa.array(["a", "b"], pa.string_view())), error=["string_view"]),
    OddTable(name="parquet bytes in lists", file="i.parquet",
             content=parquet_of(pa.array([[b"a"], [b"\xff"]])), error=["binary"]),
]  # fmt: skip

TEXTS = ["a", 'a "word", and\nanother line', "\n\n,\n", '"\n"', "the end\n", "b"] * 5
DOUBLED = [text.replace('"', '""') for text in TEXTS]
QUOTED = ["n,text", *(f'{n},"{text}"' for n, text in enumerate(DOUBLED)), ""]
WHOLE = [f"{n},1" for n in range(60)]
OBJECTS = [
    {"x": n / 2, "box": [[n / 2, 1.0], [2.0, 3.0]], "say": f"it's {n}", "who": {"age": n}}
    for n in range(30)
]

LONG = [
    raw("line breaks in quotes", "\n".join(QUOTED), values={"n": [*range(30)], "text": TEXTS},
        as_index=False),
    raw("line breaks in quotes, and CRLF", "\r\n".join(QUOTED),
        values={"n": [*range(30)], "text": TEXTS}, as_index=False),
    raw("quotes inside of values",
        'n,text\nk,12" pipe\nl,"a"b"\nm, "c\nn,d\no" 6",7" "\np","9\n9"\n',
        values={"n": ["k", "l", "m", "n", 'o" 6"', 'p"'],
                "text": ['12" pipe', 'ab"', ' "c', "d", '7" "', "9\n9"]}, as_index=False),
    raw("mistakes behind line breaks in quotes",
        "n,text\n" + "".join('x,"a\n\nb"\n' if n == 5 else "y,a\n" if n == 7 else f'{n},"a\n{n}"\n'
                            for n in range(20)),
        values={"n": [n for n in range(20) if n not in (5, 7)]}, dataset={"fields": {"n": "n"}},
        left=["n: lines 12 to 14: 'x' is not int64", "n: line 17: 'y' is not int64"],
        as_index=False),
    raw("an open quote behind line breaks", 'n,text\n1,"a\nb"\n2,"c\n3,d\n',
        error=["a quote that opens in line 4 does not close"], as_index=False),
    raw("an open quote in the header", 'n,"te\n1,2\n',
        error=["a quote that opens in line 1 does not close"], as_index=False),
    raw("a mistake beside whole numbers that become fractions",
        "\n".join(["x,y", *WHOLE, "60.5,1", "none of them,1", "61.5,1", "nan,1"]),
        values={"x": [*map(float, range(60)), 60.5, 61.5, math.nan], "y": [1] * 63},
        left=["x: line 63: 'none of them' is not float64"], as_index=False),
    raw("lines that are no rows",
        "\n".join(["x,y", *WHOLE[:10], "abc,1", *WHOLE[10:18], "20,20,20", *WHOLE[18:26], "NA,1",
                   "", *WHOLE[26:]]),
        values={"x": [*range(60)], "y": [1] * 60},
        left=["x: line 12: 'abc' is not int64", "line 21: it has 3 values, the header names 2 "
              "columns; quote values that hold a ','", "x: it has no value"], as_index=False),
    lines("rows of all kinds, and lines that are none",
          "\n".join([*map(json.dumps, OBJECTS[:7]), '{"x": 1.0, "box"', "[1]",
                     json.dumps({**OBJECTS[0], "x": "wide"}), '{"say": "a"}',
                     *map(json.dumps, OBJECTS[7:])]),
          values={"x": [each["x"] for each in OBJECTS], "box": [each["box"] for each in OBJECTS],
                  "say": [each["say"] for each in OBJECTS],
                  "who": [json.dumps(each["who"]) for each in OBJECTS]},
          types={"box": "float64", "who": "json"},
          left=["line 8: no JSON: Expecting ':' delimiter: line 1 column 17 (char 16)",
                "line 9: no object of JSON", "x: line 10: 'wide' is not float64",
                "x: it has no value"], as_index=False),
]  # fmt: skip

TABLES = [*NUMBERS, *FORMS, *HEADERS, *JSON, *COLUMNS, *LONG]
OF_LINES = [each for each in TABLES if isinstance(each.content, str) and len(each.content) < 4000]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_rows(table: OddTable, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table.source().check(tmp_path, caplog, others=["path"])


@pytest.mark.parametrize("table", OF_LINES, ids=str)
def test_rows_that_are_read_in_small_blocks(
    table: OddTable,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each block ends inside of a row, or of a value."""
    starts_late = str(table.content).startswith(("#", "sep="))  # the first block has the header
    monkeypatch.setattr(blocks_of_lines, "_BLOCK_BYTES", 32 if starts_late else 7)
    table.source().check(tmp_path, caplog, others=["path"])


@pytest.mark.parametrize("table", [table for table in TABLES if table.as_index], ids=str)
def test_an_index(table: OddTable, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table.index().check(tmp_path, caplog, others=["array"])
