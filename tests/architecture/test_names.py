"""A class has a name of its own: nobody has to ask which of two is meant."""

from __future__ import annotations

import ast
from collections import defaultdict

from support.sources import product_modules, relative


def test_no_two_classes_have_one_name():
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in product_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(relative(path)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
