"""Places in the matrix as failure files write them: `variant/strategy/checkpointing/precision`."""

AXES = ("variant", "strategy", "checkpointing", "precision", "world_size")


def axes(place: str) -> dict[str, str]:
    """The pattern of each axis that a place names; a missing part means any value. Raises ValueError.

    A fifth part, such as `w2`, names the number of ranks.
    """
    parts = place.split("/") if place else []
    if len(parts) > len(AXES) or "" in parts:
        raise ValueError(f"a place is variant/strategy/checkpointing/precision, not {place!r}")
    return {
        axis: part.removeprefix("w") if axis == "world_size" else part for axis, part in zip(AXES, parts, strict=False)
    }
