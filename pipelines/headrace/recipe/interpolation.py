"""`${oc.env:…}` in a recipe before interpolation: what stands in the environment is put in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

_START = "${"
_RESOLVERS = re.compile(r"\$\{([^:${}]*:?)")
_OF_ENVIRONMENT = {"oc.env:", "oc.decode:"}


def with_environment(value: Any) -> Any:
    """Plain values with what they take from the environment; other interpolations stay.

    An interpolation that mixes both, as `${oc.env:DATA_${seed}}`, stays, too.

    Raises:
        OmegaConfBaseException: A variable is not set, and there is no default.
    """
    if isinstance(value, dict):
        return {key: with_environment(each) for key, each in value.items()}
    if isinstance(value, list):
        return [with_environment(each) for each in value]
    if not isinstance(value, str) or _START not in value:
        return value
    parts = list(_parts(value))
    if len(parts) == 1:
        return _known(parts[0])
    return "".join(str(_known(part)) for part in parts)


def _known(part: str) -> Any:
    resolvers = set(_RESOLVERS.findall(part)) if part.startswith(_START) else set()
    if "oc.env:" not in resolvers or not resolvers <= _OF_ENVIRONMENT:
        return part
    value = OmegaConf.create({"value": part})["value"]
    return value.replace(_START, rf"\{_START}") if isinstance(value, str) else value


def _parts(text: str) -> Iterator[str]:
    """Outermost interpolations and what stands between them."""
    begin = depth = 0
    for found in re.finditer(r"\\\$\{|\$\{|[{}]", text):
        word = found[0]
        if word == _START and depth == 0:
            if found.start() > begin:
                yield text[begin : found.start()]
            begin = found.start()
        if depth or word == _START:
            depth += {"}": -1}.get(word, 1)
            if depth == 0:
                yield text[begin : found.end()]
                begin = found.end()
    if begin < len(text):
        yield text[begin:]
