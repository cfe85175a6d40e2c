"""Finds out of which shape and dtype the samples are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from headrace.errors import DataError
from headrace.packing.convert import Column, Converter, decode_audio
from headrace.packing.decode import UnreadableError
from headrace.packing.fields import FieldRule, first_rules, settled
from headrace.packing.merge import describe
from headrace.packing.samples import SampleRef, Source, Unreadable, Value, Values
from headrace.recipe.dataset import PackSpec
from headrace.storage.manifest import Quarantined

NUM_TRIED = 100
"""Samples that are looked at for one that can be read."""


def field_rules(
    name: str, source: Source, refs: Sequence[SampleRef], pack: PackSpec
) -> tuple[FieldRule, ...]:
    """How each field is kept, shapes taken from the first sample that can be read.

    Args:
        name: The source, for messages.
        source: The source, after its listing.
        refs: Its samples.
        pack: What the recipe says.

    Returns:
        Rules in the order of the source's fields, but `label` last.

    Raises:
        RecipeError: `pack.fields` does not fit the source.
        DataError: None of the first samples can be read.
    """
    rules = sorted(first_rules(source.fields, pack), key=lambda rule: rule.info.name == "label")
    bad: list[Quarantined] = []
    for ref in refs[:NUM_TRIED]:
        (values,) = source.read([ref])  # one by one: the first one is mostly all that is needed
        try:
            if isinstance(values, Unreadable):
                bad.append(Quarantined(path=ref.path, reason=values.reason))
            else:
                return tuple(_settled(rule, ref, values) for rule in rules)
        except UnreadableError as error:
            bad.append(Quarantined(path=ref.path, reason=str(error)))
    raise DataError(
        f"None of the first {len(bad)} files in {name} can be read: {describe(bad)}",
        "Repair or remove these files, or narrow dataset.include.",
    )


def _settled(rule: FieldRule, ref: SampleRef, values: Values) -> FieldRule:
    value = values[rule.info.name]
    converter, column = Converter(rule), Column()
    converter.add(ref.path, value, column)
    size = len(column.items[0]) if converter.to_array is None else _num_bytes(value)
    array = converter.to_array(value) if converter.to_array is not None else None
    rate = None
    if array is not None and rule.kind == "audio":
        rate = rule.options.sample_rate or decode_audio(cast("bytes", value))[1]
    return settled(rule, array, ref.path, size, rate)


def _num_bytes(value: Value) -> int:
    return len(value) if isinstance(value, bytes) else int(getattr(value, "nbytes", 0))
