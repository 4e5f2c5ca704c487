"""A failure, what is run of it, who recommends what, and the functions with which its author writes that down."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from faultline.base.axes import NAMES
from faultline.catalogue.history import History, Reported, axes
from faultline.catalogue.recognition import Recognition

REMEDIES = ("helps", "present")
KINDS = (*REMEDIES, "detects", "changes", "fails", "trains", "shows")
TRIED_HERE = "tried here"
"""Instead of a source: nobody recommends it by name."""
EVERY_MODE = ("*",)
"""Of checkpointing, for a variant of a failure whose others run in fewer."""
CHANGEABLE = ("remedy", *(name for name in NAMES[1:-1] if name != "world_size"), "stack")


@dataclass(frozen=True)
class Variant:
    """A training that is run: the failure as it was reported (`broken`) or one claimed remedy.

    `trainer` is empty at scenario level, else the trainer that it runs in: the
    name is then ``trainer-remedy``. `strategies` are patterns; so are `checkpointing`, the modes that it runs in by
    default: what checkpointing has nothing to do with is measured in one of them. With `bf16` all of it runs in that
    as well, where else only broken variants do, under some strategies. With `resumed` it is by default saved, loaded in
    fresh ranks and trained on, where others run through. `also` are more cells that it runs in by default, by patterns
    of what their ids have behind it: those of an axis that others leave alone. `second` is the
    trainer's attribute that holds a model which is only read, where the failure is about it.
    `needs`, `look_for`, `plain` and `package` are what recognise.toml has (see `ProjectCondition`).
    `text` says in a line what is run, where no claim does (see `Failure.described`).
    """

    remedy: str
    trainer: str = ""
    strategies: tuple[str, ...] = ("*",)
    _: KW_ONLY
    bf16: bool = False
    resumed: bool = False
    also: tuple[str, ...] = ()
    second: str = ""
    needs: tuple[str, ...] = ()
    look_for: str = ""
    plain: str = ""
    package: str = ""
    checkpointing: tuple[str, ...] = ()
    text: str = ""

    @property
    def name(self) -> str:
        return f"{self.trainer}-{self.remedy}" if self.trainer else self.remedy

    @property
    def life(self) -> str:
        """In which life it is run by default."""
        return "resumed" if self.resumed else "straight"

    @property
    def broken(self) -> bool:
        """Whether it shows the failure: as it was reported, or in another form (`head_broken`)."""
        return self.remedy.endswith("broken")

    @property
    def any_trainer(self) -> bool:
        """Whether its trainer only stands for all that are built on transformers' Trainer: what goes wrong is there,
        or in a library below."""
        return bool(self.trainer) and self.package not in ("", "trl")


@dataclass(frozen=True)
class Claim:
    """A remedy that somebody recommends, or something else that is said of the failure, and the cells that test it.

    `where` chooses broken cells, axis by axis, with patterns; `swap` makes of
    each the cell to compare it with. By kind, a cell supports the claim if

    helps     a remedy: the broken cell doesn't train and the swapped one does
    present   a remedy that the chosen cell has already: never; where that doesn't train, it contradicts it
    detects   the swapped cell raises a `check` signature just where the broken one doesn't train
    changes   the swapped cell has another outcome than the broken one
    fails     the chosen cell doesn't train
    trains    the chosen cell trains, and some broken one doesn't
    shows     the chosen cell doesn't train, and says so with an error

    An upgrade swaps the `stack`, one of stacks/: what it helps against is what the broken cells do on the stack that
    the failure was reported on. So are other claims of which no cell of today's stack can tell.
    `source` is the link in which it is recommended, or described, by name: an issue, a pull request, or a page of the
    library's documentation. Where the record names nobody, there is none.
    `general` is the same for any model with the mechanism, where it helps there as well.
    `key` is its name among the failure's claims, unless that follows from what it changes.
    """

    text: str
    kind: str = "helps"
    swap: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    general: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a claim's kind is one of {', '.join(KINDS)}, not {self.kind!r}")


@dataclass(frozen=True, eq=False)  # known by its name, and hashable so that what is read for it can be kept
class Failure:
    """One documented defect: what failure.py says, with what the folder's other files add to it.

    - `title`: what goes wrong, for anybody who has it; `first_seen`: the model or the program that had it first.
    - `errors`: a name for each error, and the pattern of its text. What is in `also_raises`, kinds of divergence and
      signals too, is another failure's, which these models meet as well, and so is the pattern, unless it is given
      here: no remedy is asked to help against it.
    - `variants` and `claims`: as they are run and judged. An author writes less: of the variants only those that don't
      follow from a claim, and the claims in groups, by who makes them (see `loading`).
    - `checkpointing`: the modes of every variant that doesn't name its own.
    - `resumed`: that every variant is about a life that is resumed.
    - `upstream`: the repository whose code would have to change, as owner/name. Empty where the mistake is in one's
      own code, and a library can only say so in its documentation.
    """

    title: str
    since: str
    until: str
    errors: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    claims: Mapping[str, Claim] = field(default_factory=dict)
    also_raises: tuple[str, ...] = ()
    checkpointing: tuple[str, ...] = ("*",)
    resumed: bool = False
    upstream: str = ""
    first_seen: str = ""
    name: str = ""
    recognition: Recognition = field(default_factory=Recognition)
    history: History = field(default_factory=History)

    @property
    def id(self) -> str:
        """A short name that stays, for lists of what to ignore: ``F3a2b``."""
        return f"F{hashlib.sha256(self.name.encode()).hexdigest()[:4]}"

    def variant(self, name: str) -> Variant:
        return next(v for v in self.variants if v.name == name)

    def described(self, variant: Variant) -> str:
        """A variant in a line: in its author's words, or in those of the claim that proposes it."""
        if variant.text:
            return variant.text
        exactly = [claim.text for claim in self.claims.values() if claim.swap.get("variant") == variant.name]
        alike = [claim.text for claim in self.claims.values() if claim.swap.get("remedy") == variant.remedy]
        return "the failure" if variant.broken else [*exactly, *alike, ""][0]

    def signature(self, text: str) -> str:
        """The name of the first error whose pattern is found in a text, or ``other``."""
        return next((name for name, pattern in self.errors.items() if re.search(pattern, text)), "other")

    @property
    def records(self) -> tuple[str, ...]:
        return self.history.records

    @property
    def reported(self) -> Reported | None:
        return self.history.reported

    @property
    def report(self) -> str:
        """The pattern of the cells that the upstream report shows."""
        return f"{self.history.report}/*" if self.history.report else ""


def _claim(kind: str, text: str, where: str = "", key: str = "", **changes: str) -> Claim:
    """A claim of some kind about the broken cells in a place, in fp32 unless the place says otherwise.

    `changes` make of each cell the one to compare it with: a `remedy` in the same trainer, or another `variant`,
    `strategy`, `checkpointing`, `precision` or `stack`.
    """
    for axis in changes:
        if axis not in CHANGEABLE:
            raise ValueError(f"a claim changes one of {', '.join(CHANGEABLE)}, not {axis!r}")
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
