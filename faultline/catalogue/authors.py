"""How a failure's author writes down who recommends what: a function for each kind of claim."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from faultline.catalogue.places import axes
from faultline.catalogue.records import Claim, Variant

TRIED_HERE = "tried here"
"""Instead of a source: nobody recommends it by name."""
EVERY_MODE = ("*",)
"""Of checkpointing, for a variant of a failure whose others run in fewer."""
CHANGES = ("remedy", "variant", "strategy", "checkpointing", "precision", "stack")


def _claim(kind: str, text: str, where: str = "", key: str = "", **changes: str) -> Claim:
    """A claim of some kind about the broken cells in a place, in fp32 unless the place says otherwise.

    `changes` make of each cell the one to compare it with: a `remedy` in the same trainer, or another `variant`,
    `strategy`, `checkpointing`, `precision` or `stack`.
    """
    for axis in changes:
        if axis not in CHANGES:
            raise ValueError(f"a claim changes one of {', '.join(CHANGES)}, not {axis!r}")
    chosen = axes(where)
    return Claim(text, kind, changes, chosen, key=key or "+".join(changes.values()) or _key(kind, chosen))


def _key(kind: str, where: dict[str, str]) -> str:
    """The key of a claim that changes nothing: its kind, and the variant or the strategy that it is about."""
    variant, strategy = where.get("variant", "broken"), where.get("strategy", "").rstrip("*")
    names = [name for name in (variant, strategy) if re.fullmatch(r"[\w-]+", name) and not name.endswith("broken")]
    return "-".join([kind, *names[:1]])


Author = Callable[..., Claim]
helps: Author = partial(_claim, "helps")
present: Author = partial(_claim, "present")
detects: Author = partial(_claim, "detects")
changes: Author = partial(_claim, "changes")
fails: Author = partial(_claim, "fails")
trains: Author = partial(_claim, "trains")
shows: Author = partial(_claim, "shows")


def variants(remedies: str, trainer: str = "", strategies: tuple[str, ...] = ("*",), **others: Any) -> list[Variant]:
    """A variant for each of the remedies, which have spaces between them: all of them alike."""
    return [Variant(remedy, trainer, strategies, **others) for remedy in remedies.split()]
