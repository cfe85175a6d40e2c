"""Files and functions stay short; number of parameters and complexity are ruff's to check."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from support.sources import product_modules, relative

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60


def test_no_file_is_too_long():
    lengths = {
        str(relative(path)): len(path.read_text().splitlines()) for path in product_modules()
    }
    too_long = {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}
    assert too_long == {}


def test_no_function_is_too_long():
    assert list(long_functions()) == []


def long_functions() -> Iterator[str]:
    """Functions over the limit, as `file:line name (lines)`."""
    for path in product_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    yield f"{relative(path)}:{node.lineno} {node.name} ({num_lines})"
