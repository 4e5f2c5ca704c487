"""The records of recognise.toml: how diagnose, check and audit tell a failure from others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

# What an engine says of a weight that is in shards where it is used whole, and nothing of its type or kind.
SHARDED = re.compile(
    r"mat2 must be a matrix|mixed torch\.Tensor and DTensor|expected 1D|must match the size|size mismatch|same shape"
    r"|\bshape '|\bshapes? (?:mismatch|cannot)|\bdimension|setStorage|invalid gradient at|_will_engine_execute_node",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Setting:
    """A setting that a variant needs: a training argument, true or false, or what `audit` reads of an engine's files.

    `text` has it in words, if its name isn't enough. `key` is what people write, if that isn't its name; `label` is
    what is shown in place of the key, and `on` and `off` are its values in words. It is on by default since the release
    `default_since` of the `package`, if there is one.
    """

    text: str = ""
    key: str = ""
    label: str = ""
    on: str = "yes"
    off: str = "no"
    package: str = ""
    default_since: str = ""


NEEDS = {
    "adapter": Setting("an adapter, such as LoRA", "use_peft", "adapter"),
    "reference model": Setting("a reference model, as `beta` above 0 makes one", "beta", "reference model"),
    "accumulation": Setting(
        "`gradient_accumulation_steps` above 1", "gradient_accumulation_steps", on="more than 1", off="1"
    ),
    "target_parameters": Setting(
        "an adapter with `target_parameters`", "lora_target_parameters", on="set", off="not set"
    ),
    "trained head": Setting(
        "an adapter with `modules_to_save=['lm_head']`",
        "lora_modules_to_save",
        on="with lm_head",
        off="without lm_head",
    ),
}
"""The settings that any variant may need of a training beside its place; a folder's own needs are settings."""


@dataclass(frozen=True)
class Condition:
    """Patterns that a log has, and patterns that it hasn't; `only_if` has in words what must be so besides, and which
    the log needn't show."""

    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    only_if: str = ""

    def holds(self, text: str) -> bool:
        return all(re.search(pattern, text) for pattern in self.present) and not any(
            re.search(pattern, text) for pattern in self.absent
        )


def meets_any(any_of: Iterable[Condition], text: str) -> bool:
    """Whether a text meets one of the conditions, or there are none."""
    every = tuple(any_of)
    return not every or any(condition.holds(text) for condition in every)


def patterns_met(any_of: Iterable[Condition], text: str) -> int:
    """How many patterns that a log should have a text has, of the condition with the most."""
    return max((sum(bool(re.search(p, text)) for p in each.present) for each in any_of), default=0)


@dataclass(frozen=True)
class ErrorCondition:
    """The conditions of an error beside its text, if other mistakes have the same text.

    - `any_of`: conditions of which the log must meet one.
    - `distinguished_by`: the same in words.
    - `same_as`: the failure and error, as `failure/error`, whose mechanism this one has.
    - `may_be`: conditions of which the log must meet one for the failure to be among several that it may be, if the
      text alone says too little for that.
    - `raised_on_load`: no run ends with it, but a process that loads what the run left does; the run itself ends
      with this outcome's signature.
    """

    any_of: tuple[Condition, ...] = ()
    distinguished_by: str = ""
    same_as: str = ""
    may_be: tuple[Condition, ...] = ()
    raised_on_load: str = ""

    @property
    def terms(self) -> tuple[str, ...]:
        """The patterns of the names of code in `distinguished_by`."""
        return tuple(
            rf"\b{re.escape(name)}(?!\w)" for name in re.findall(r"`(\w[\w.]{4,})[^`]*`", self.distinguished_by)
        )


@dataclass(frozen=True)
class Mechanism:
    """The mechanism behind an error in any model, whichever of several failures it is.

    `any_of` are conditions of which a log must meet one; without them the error is enough.
    """

    text: str
    any_of: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class WarningPattern:
    """A warning that is all that a run prints, and what distinguishes it from a harmless one, in words."""

    pattern: str
    distinguished_by: str


@dataclass(frozen=True)
class Model:
    """Facts about a model, seen in one process or beside its reference: the failure needs one of them.

    `distinguished_by` has words for facts that several failures show. Of those in `any_error`, whatever such a
    model raises where the failure ends with an error is likely the failure: engines word it in many ways. `mechanism`
    says, by fact, what happens to any model of which it holds, where no more than that is known. `excludes` has the
    facts that exclude a remedy, by its name.
    """

    any_of: tuple[str, ...] = ()
    excludes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    distinguished_by: str = ""
    any_error: tuple[str, ...] = ()
    mechanism: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Symptom:
    """What people see of a failure, as they put it in English and in Chinese."""

    text: str
    zh: str


@dataclass(frozen=True)
class Symptoms:
    """All of symptoms.toml, in the terms of `diagnose/terms.toml`.

    A report of the failure has a term of each group: of those `together` within a few sentences, of those `anywhere` in
    the text. A group is ``tiny|empty``.
    """

    together: tuple[str, ...] = ()
    anywhere: tuple[str, ...] = ()
    symptom: tuple[Symptom, ...] = ()


@dataclass(frozen=True)
class ProjectCondition:
    """The conditions of a variant on a project: `needs` are names of NEEDS or of a setting, which its files can show.

    `look_for` says what no file shows, and `plain` why there is nothing to look for where nothing is needed: whoever
    uses the trainer or engine has it. `package` is the library in which it goes wrong: that of its trainer, else the
    strategy's engine, unless it is named.
    """

    needs: tuple[str, ...] = ()
    look_for: str = ""
    plain: str = ""
    package: str = ""


@dataclass(frozen=True)
class Recognition:
    """All of recognise.toml.

    `project` has the names of variants, or patterns. `remedies` words claims, by key, for any model with the mechanism;
    an empty text stands for the claim's own. `words` are parts of patterns: a name among them stands for its pattern
    wherever it occurs.
    """

    model: Model = field(default_factory=Model)
    project: Mapping[str, ProjectCondition] = field(default_factory=dict)
    setting: Mapping[str, Setting] = field(default_factory=dict)
    error: Mapping[str, ErrorCondition] = field(default_factory=dict)
    mechanism: Mapping[str, Mechanism] = field(default_factory=dict)
    warning: tuple[WarningPattern, ...] = ()
    remedies: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def of(self, error: str) -> ErrorCondition:
        """The conditions of an error."""
        return self.error.get(error, ErrorCondition())

    def distinguished_by(self, name: str) -> str:
        """The words that tell this failure from others with an error or a fact of a model; empty if unknown."""
        return self.model.distinguished_by if name in self.model.any_of else self.of(name).distinguished_by

    def expanded(self) -> Recognition:
        """The same with every word replaced by its pattern."""

        def full(pattern: str) -> str:
            for word, meaning in self.words.items():
                parts = re.split(rf"(?:(?<=\\b)|(?<!\w)){word}(?!\w)", pattern)
                pattern = f"(?:{meaning})".join(parts)
            return pattern

        def conditions(any_of: tuple[Condition, ...]) -> tuple[Condition, ...]:
            return tuple(replace(c, present=(*map(full, c.present),), absent=(*map(full, c.absent),)) for c in any_of)

        return replace(
            self,
            warning=tuple(replace(each, pattern=full(each.pattern)) for each in self.warning),
            error={
                name: replace(each, any_of=conditions(each.any_of), may_be=conditions(each.may_be))
                for name, each in self.error.items()
            },
            mechanism={name: replace(each, any_of=conditions(each.any_of)) for name, each in self.mechanism.items()},
        )
