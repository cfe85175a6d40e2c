"""Source folders, and pack steps that run on this very process in place of a lease."""

from support.packing import (
    array_source,
    backwards,
    image_source,
    in_process,
    make_context,
    packs,
)

__all__ = ["array_source", "backwards", "image_source", "in_process", "make_context", "packs"]
