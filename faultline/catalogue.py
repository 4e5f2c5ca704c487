"""The catalogue: what each folder in repros/ says of its failure, read without importing torch."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
REPROS = ROOT / "repros"
REMEDIES = ("helps", "present")
KINDS = (*REMEDIES, "detects", "changes", "fails", "trains", "shows")
NEEDS = {
    "adapter": "an adapter, such as LoRA",
    "reference model": "a reference model, as `beta` above 0 makes one",
    "average_tokens_across_devices": "`average_tokens_across_devices`, on by default since transformers 4.54",
    "accumulation": "`gradient_accumulation_steps` above 1",
    "no gradient_clipping": "a DeepSpeed config without `gradient_clipping`",
    "own max_grad_norm": "a `max_grad_norm` at which DeepSpeed doesn't clip by itself (1.0 since 0.19.3, never before)",
    "sharded state dict": "`fsdp_state_dict_type: SHARDED_STATE_DICT`",
    "precompute_ref_log_probs": "`precompute_ref_log_probs`",
    "target_parameters": "an adapter with `target_parameters`",
    "trained head": "an adapter with `modules_to_save=['lm_head']`",
}
"""What a variant may need of a training beside its place in the matrix, where a project's files can say it."""
BY_DEFAULT = {"average_tokens_across_devices": ("transformers", "4.54.0")}
"""Those of them that are there unless a file says otherwise, and the package and release since which they are."""


@dataclass(frozen=True)
class Variant:
    """What is run: the failure as it was reported (`broken`) or one claimed remedy.

    `trainer` is empty at scenario level, else the trainer that it runs in: the
    name is then ``trainer-remedy``. `strategies` are patterns; so are `checkpointing`, the modes that it runs in by
    default: what checkpointing has nothing to do with is measured in one of them. With `bf16` all of it runs in that
    as well, where else only broken variants do, under some strategies. `second` is the
    trainer's attribute that holds a model which is only read, where the failure is about it.
    `needs` are of NEEDS; `look` says what no file of a project shows, and what to look for in its code.
    `package` is the library in which it goes wrong: TRL in a trainer, else the strategy's engine, unless it is named.
    """

    remedy: str
    trainer: str = ""
    strategies: tuple[str, ...] = ("*",)
    _: KW_ONLY
    bf16: bool = False
    second: str = ""
    needs: tuple[str, ...] = ()
    look: str = ""
    package: str = ""
    checkpointing: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        for need in self.needs:
            if need not in NEEDS:
                raise ValueError(f"a variant needs some of {', '.join(NEEDS)}, not {need!r}")

    @property
    def name(self) -> str:
        return f"{self.trainer}-{self.remedy}" if self.trainer else self.remedy

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
    each the cell to compare it with. By kind, a cell speaks for the claim when

    helps     a remedy: the broken cell doesn't train and the swapped one does
    present   a remedy that the chosen cell has already: never; where that doesn't train, it speaks against it
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
    """

    text: str
    kind: str = "helps"
    swap: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    general: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"a claim's kind is one of {', '.join(KINDS)}, not {self.kind!r}")


@dataclass(frozen=True)
class Mechanism:
    """What happens to any model whose error has a signature's words, whichever of several failures it is.

    `context` is the pattern of what a log must show of it; empty where the words are enough.
    """

    text: str
    context: str = ""


@dataclass(frozen=True, eq=False)
class Turn:
    """The first release that shows a failure, or doesn't any more, in cells that `where` chooses as in a claim.

    `measured` is the command that found it.
    """

    package: str
    version: str
    where: Mapping[str, str]
    measured: str


@dataclass(frozen=True)
class Reported:
    """The failure as it was reported: a stack of stacks/, and the place in the matrix, on two ranks.

    `note` says what of the report this place can't show without a GPU, `needs_gpu` that it can't show it at all.
    `good` is the stack of the first release that has it no more, or the last that hasn't it yet, which runs beside it.
    """

    stack: str
    variant: str
    strategy: str
    checkpointing: str = "off"
    note: str = ""
    precision: str = "fp32"
    needs_gpu: bool = False
    good: str = ""


@dataclass(frozen=True, eq=False)  # known by its name, and hashable so that what is read for it can be kept
class Failure:
    """One documented defect.

    - `signatures`: a name for each error, and the pattern of its text. What is in `elsewhere`, kinds of divergence and
      signals too, is another failure's, which these models meet as well, and so is the pattern, unless it is given
      here: no remedy is asked to help against it.
    - `context`, for signatures whose words other mistakes share: the pattern of what else a log must show, and
      `told_by`, what that is in words. It is searched in many lines, so one that looks ahead is anchored. Without it
      the answer is the signature's mechanism, likely and no more, if it has one: its own in `mechanism`, or that of
      the failure which `shares` names as ``failure/signature``, beside which this one may be meant.
    - `later`, for signatures that no run ends with, but a process that loads what the run left: what the run is found
      to be, such as ``checkpoint-lacks``.
    - `warns`: the pattern of a warning that is all that such a run prints where it raises nothing, and what it is told
      apart by from a harmless one, in words.
    - `began` and `fixes`: the first releases with it and without it, where a search found them.
    - `found_by`: facts about a model (see `observe.Observer.facts`), or of a cell beside its reference (see
      `problems.COMPARED`), of which the failure needs one; `told_by` has words for those that several failures show.
    - `report`: a pattern of the cell that its upstream report shows, for one that is about a trainer's own code, or
      happens in several forms or under strategies of which one is what people meet.
    - `upstream`: the repository whose code would have to change, as owner/name. Empty where the mistake is in one's
      own code, and a library can only say so in its documentation.
    - `not_reproduced`: what was tried of a record that turned out to be wrong, or that no stack here shows. It marks
      the failure, which keeps its line in the table.
    """

    title: str
    records: tuple[str, ...]
    since: str
    until: str
    signatures: Mapping[str, str]
    variants: tuple[Variant, ...]
    claims: Mapping[str, Claim]
    elsewhere: tuple[str, ...] = ()
    context: Mapping[str, str] = field(default_factory=dict)
    told_by: Mapping[str, str] = field(default_factory=dict)
    mechanism: Mapping[str, Mechanism] = field(default_factory=dict)
    shares: Mapping[str, str] = field(default_factory=dict)
    later: Mapping[str, str] = field(default_factory=dict)
    warns: Mapping[str, str] = field(default_factory=dict)
    reported: Reported | None = None
    began: tuple[Turn, ...] = ()
    fixes: tuple[Turn, ...] = ()
    found_by: tuple[str, ...] = ()
    report: str = ""
    upstream: str = ""
    not_reproduced: str = ""
    name: str = ""

    def variant(self, name: str) -> Variant:
        return next(v for v in self.variants if v.name == name)

    def signature(self, text: str) -> str:
        """The name of the first signature found in an error's text, or ``other``."""
        for name, pattern in self.signatures.items():
            if re.search(pattern, text):
                return name
        return "other"


def load_module(folder: Path) -> ModuleType:
    """Import one folder's failure.py under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"repros.{folder.name}.failure", folder / "failure.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def failures(root: Path = REPROS) -> dict[str, Failure]:
    """Every failure by name, in the order of their names."""
    found: dict[str, Failure] = {}
    for file in sorted(root.glob("*/failure.py")):
        failure = load_module(file.parent).FAILURE
        found[file.parent.name] = replace(failure, name=file.parent.name)
    patterns: dict[str, str] = {}
    for failure in found.values():
        for name, pattern in failure.signatures.items():
            if name not in failure.elsewhere:
                patterns.setdefault(name, pattern)
    for key, failure in found.items():
        lent = {n: patterns[n] for n in failure.elsewhere if n in patterns and n not in failure.signatures}
        found[key] = replace(failure, signatures={**failure.signatures, **lent})
    return found
