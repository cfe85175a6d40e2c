"""What the keys of recipes and sites mean: the texts below the fields of their models.

Pydantic can read these whenever a class is made (`use_attribute_docstrings`), which was a fifth of
the time that a process of headrace takes to start; only schemas and reference pages need them.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Text of each field of a model, and of the models that it inherits from, by the field's key.

    A field without a text is absent.
    """
    parts = [each for each in reversed(model.__mro__) if each.__module__.startswith("headrace.")]
    texts: dict[str, str] = {}
    for part in parts:
        texts |= _texts_in(part)
    fields = {name: field.alias or name for name, field in model.model_fields.items()}
    return {key: texts[name] for name, key in fields.items() if name in texts}


def _texts_in(kind: type) -> dict[str, str]:
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assignments = itertools.pairwise(parsed.body) if isinstance(parsed, ast.ClassDef) else ()
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in assignments
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


class WithMeanings(GenerateJsonSchema):
    """Writes schemas of models whose keys have their meanings as descriptions."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """As pydantic writes the model, with descriptions."""
        written = super().model_schema(schema)
        for key, text in meanings(schema["cls"]).items():
            written["properties"][key]["description"] = text
        return written
