"""What a kind of field is, and the table of kinds: those built in, and those of other packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

from numpy.typing import NDArray

from headrace.entry_points import load_group
from headrace.errors import UnreadableError, UserError

GROUP = "headrace.fields"
"""Entry points of further kinds: subclasses of `Kind` that are made without arguments."""

_BUILT_IN = (
    ("image", "ImageKind"), ("audio", "AudioKind"), ("array", "ArrayKind"), ("text", "TextKind"),
    ("text", "ValueKind"),
)  # fmt: skip

Value: TypeAlias = "bytes | NDArray[Any] | str | int | float"
"""A value as a source gives it: the bytes of a file as they are, an array in C order and
little-endian, a `str`, a number or boolean."""

Choose: TypeAlias = Callable[[int, int], tuple[int, int, int, int]]
"""Returns top, left, bottom and right of the part to take of an image of so many rows, columns."""

Orientation: TypeAlias = 'Literal["apply", "keep"] | None'
"""Whether images are turned as their EXIF data says."""


class Decoded(NamedTuple):
    """A decoded sample."""

    array: NDArray[Any]
    sample_rate: int | None = None
    """Samples per second of a sound."""
    changes: tuple[str, ...] = ()
    """What differs from the file, for messages: `alpha dropped`."""


class Encoded(NamedTuple):
    """A sample that is kept as it is."""

    content: bytes
    encoding: str = ""
    """Empty: that of the field."""
    changes: tuple[str, ...] = ()
    """How what it decodes to differs from the file, if that is known."""


class Shape(Protocol):
    """Keys of `pack.fields.NAME` that say how samples are brought into shape."""

    @property
    def resize(self) -> tuple[int, int] | None:
        """Height and width."""

    @property
    def filter(self) -> str:
        """Name of the filter that resizes."""

    @property
    def channels(self) -> Literal[1, 3] | None:
        """Grey, or red, green, blue."""

    @property
    def sample_rate(self) -> int | None:
        """Samples a second."""


class Kind:
    """A kind of field. This one keeps bytes that no other kind knows; others say what differs."""

    name: str = "bytes"
    """As the kind is called in messages; of a file, and of bytes in a table, also its field."""
    plural: str = "other files"
    """Several values, for messages."""
    suffixes: tuple[str, ...] = ()
    """Endings of its files, in lower case."""
    encodings: tuple[str, ...] = ("raw",)
    """Encodings in a manifest, the first where values have several."""
    types: tuple[type, ...] = (bytes,)
    """Types of its values as sources give them."""
    options: tuple[str, ...] = ()
    """Keys of `pack.fields.NAME` that apply to it."""
    keep: Literal["encoded", "decode"] = "encoded"
    """How its values are kept where the recipe does not say: as they are, or as arrays."""
    mixed: Literal["error", "ragged"] = "error"
    """What is done with arrays of other shapes than the first one's, where it does not say."""
    varies: bool = True
    """Whether values that are kept as they are differ in shape by nature, within a batch."""
    is_plain: bool = False
    """Whether an array of the field's dtype and shape is kept as it is."""
    is_text: bool = False
    """Whether it is read as `str`."""
    is_wave: bool = False
    """Whether arrays are shown as waves: time first, then channels."""

    def __reduce__(self) -> tuple[object, ...]:  # a node that lacks its package says so
        return kind_named, (self.name,)

    def recognises(self, content: bytes) -> bool:
        """Whether the first bytes of a value are of this kind."""
        del content
        return False

    def encoding_of(self, suffix: str) -> str:
        """Return the encoding of files with an ending; empty if the ending does not say it."""
        del suffix
        return ""

    def read(self, content: bytes, dtype: str) -> Value:
        """The value that a file holds; `dtype` as in `encode`. `UnreadableError` if damaged."""
        del dtype
        return content

    def oriented(self, orientation: Orientation) -> Kind:
        """Return this kind, or the one that decodes with an orientation."""
        del orientation
        return self

    def encode(self, value: Value, dtype: str, *, check: bool) -> Encoded | tuple[bytes, str]:
        """Return the bytes and the encoding of a value of `read` that is kept as it is.

        Raises:
            UnreadableError: It is not of this kind; or, with `check`, `decode` cannot read it.
        """
        del dtype, check
        return Encoded(value if isinstance(value, bytes) else str(value).encode())

    def decode(self, content: bytes) -> NDArray[Any] | str:
        """What bytes stand for that are kept as they are: an array, or text.

        Raises:
            UnreadableError: They are damaged.
            UserError: What decodes them is not installed.
        """
        raise UnreadableError(f"{len(content):,} bytes of no kind that can be decoded")

    def decode_part(self, content: bytes, choose: Choose, size: int) -> NDArray[Any]:
        """Return a part of an encoded image, `(height, width[, 3]) uint8`; errors as `decode`.

        It may be scaled down by 2, 4 or 8 if it keeps `size` pixels in both directions.
        """
        del size
        pixels = cast("NDArray[Any]", self.decode(content))
        return part_of(pixels, choose(*pixels.shape[:2]))

    def to_array(self, value: Value, shape: Shape) -> Decoded | tuple[NDArray[Any], int | None]:
        """The array that a value is kept as, brought into shape; errors as `decode`."""
        del shape
        found = self.decode(value if isinstance(value, bytes) else str(value).encode())
        if isinstance(found, str):
            raise UnreadableError("a text is not an array")
        return Decoded(found)

    def to_picture(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a decoded sample as an image, `([frames,] height, width[, channels])`, or a wave.

        A wave is `(frames[, channels])`.
        """
        return values

    def way_out(self, name: str, *, other_axes: bool) -> str:
        """Return what to do if an array of a field has another shape, or number of axes."""
        del name, other_axes
        return ""


def part_of(pixels: NDArray[Any], box: Iterable[int], shrink: int = 1) -> NDArray[Any]:
    """Return a part of an image that has one pixel for `shrink` in each direction, as a view."""
    top, left, bottom, right = ((edge + shrink // 2) // shrink for edge in box)
    return pixels[top:bottom, left:right]


BYTES = Kind()


@cache
def kinds() -> Mapping[str, Kind]:
    """All kinds by name, built in ones first; `UserError` if a package's cannot be loaded."""
    classes = [
        getattr(import_module(f"headrace.fields.{module}"), name) for module, name in _BUILT_IN
    ]
    found: dict[str, Kind] = {}
    for each in (*classes, *load_group(GROUP).values(), Kind):
        found.setdefault(each.name, each())  # none takes the place of one that is built in
    return found


def kind_of_suffix(suffix: str) -> Kind:
    """Kind of a file that holds one value, by its ending; `BYTES` when that says nothing."""
    return next((each for each in kinds().values() if suffix in each.suffixes), BYTES)


def kind_of_bytes(content: bytes) -> Kind:
    """Return the kind of a file by its first bytes; `BYTES` if they say nothing."""
    return next((each for each in kinds().values() if each.recognises(content)), BYTES)


def kind_named(name: str) -> Kind:
    """Return the kind of a name; a `UserError` if no package adds it here."""
    if name not in kinds():
        raise _missing(f"No kind of field is called '{name}'")
    return kinds()[name]


def kind_of_encoding(encoding: str, orientation: Orientation = None) -> Kind:
    """Return the kind that reads a field of a manifest; errors as `kind_named`."""
    for kind in kinds().values():
        if encoding in kind.encodings:
            return kind.oriented(orientation or "keep")
    raise _missing(f"No kind of field reads the encoding '{encoding}'")


def _missing(what: str) -> UserError:
    return UserError(
        what, f"Install the package that adds it (entry points '{GROUP}') here and on every node."
    )


def kinds_with(option: str) -> list[str]:
    """Return the names of the kinds to which a key of `pack.fields.NAME` applies."""
    return [kind.name for kind in kinds().values() if option in kind.options]


def options_of_kinds() -> set[str]:
    """Return the keys of `pack.fields.NAME` that apply to some kinds only."""
    return {option for kind in kinds().values() for option in kind.options}


def encoding_by_magic(content: bytes, table: Iterable[tuple[bytes, str]], what: str) -> str:
    """Encoding of a table by first bytes; `UnreadableError` if none of it begins so."""
    table = tuple(table)
    for magic, encoding in table:
        if content.startswith(magic):
            return encoding
    if not content:
        raise UnreadableError("the file is empty")
    names = ", ".join(sorted({encoding for _, encoding in table}))
    raise UnreadableError(f"no {what} by its first bytes; valid: {names}")
