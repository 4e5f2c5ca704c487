"""A program: a model's spec, how it trains and what its engine is set to, as one small JSON object."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from faultline.base.text import matches
from lab.programs import spec as specs
from lab.programs import training as trainings
from lab.programs.descriptions import describe
from lab.programs.settings import ACCELERATE, SETTINGS, TRAINERS, TRL
from lab.programs.spec import Spec, digest
from lab.programs.training import Training

VALUES: Mapping[str, tuple[Any, ...]] = {
    **specs.VALUES,
    **trainings.VALUES,
    **{key: setting.values for key, setting in SETTINGS.items()},
}
"""The values of each feature of a program, the plain one first."""
SMALL = 1_000_000  # numbers in a bucket, of 5e8 by default
PLACES = {name: place for place, name in enumerate(VALUES)}


@dataclass(frozen=True)
class Program:
    """What is not plain about a model, its training and its engine, by feature; `seed` is that of weights and rows."""

    seed: int = 0
    chosen: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def of(seed: int, chosen: Mapping[str, Any]) -> "Program":
        """A program without what is plain, in the order of VALUES."""
        names = sorted(chosen, key=PLACES.__getitem__)
        return Program(seed, tuple((name, chosen[name]) for name in names if chosen[name] != _plain(name)))

    @property
    def features(self) -> dict[str, Any]:
        """What is not plain, by feature."""
        return dict(self.chosen)

    @property
    def spec(self) -> Spec:
        """The model."""
        return Spec(self.seed, **{name: value for name, value in self.chosen if name in specs.VALUES})

    @property
    def training(self) -> Training:
        return Training(**{name: value for name, value in self.chosen if name in trainings.VALUES})

    def value(self, name: str) -> Any:
        """A feature's value; one that is derived from others, such as `linear_units`, is the spec's."""
        return self.features.get(name, _plain(name)) if name in VALUES else getattr(self.spec, name)

    def with_only(self, names: Iterable[str]) -> "Program":
        """The program with these of its features."""
        remaining = {*names}
        return dataclasses.replace(self, chosen=tuple(each for each in self.chosen if each[0] in remaining))

    def with_value(self, name: str, value: Any) -> "Program":
        return Program.of(self.seed, {**self.features, name: value})

    def under(self, family: str, strategy: str) -> "Program":
        """The program without settings that a strategy doesn't take."""
        settings = (SETTINGS[name] for name, _ in self.chosen if name in SETTINGS)
        families = (family, ACCELERATE, *TRAINERS)
        foreign = {e.key for e in settings if e.family not in families or not matches(strategy, (e.strategies,))}
        return self.with_only(name for name, _ in self.chosen if name not in foreign)

    def nested(self, family: str) -> dict[str, Any]:
        """The settings of a family, in their sections."""
        made: dict[str, Any] = {}
        for key, value in self.chosen:
            if key in SETTINGS and SETTINGS[key].family == family:
                section = made
                for name in SETTINGS[key].path:
                    section = section.setdefault(name, {})
                section[SETTINGS[key].name] = value
        return made

    @property
    def trainer(self) -> str:
        """The trainer that it trains in: one of TRAINERS, or empty for a plain loop."""
        return self.training.through if self.training.through in TRAINERS else ""

    @property
    def in_trl(self) -> bool:
        """Whether it trains a model of transformers in a trainer of TRL."""
        return self.trainer in TRL

    @property
    def deepspeed(self) -> dict[str, Any]:
        """What DeepSpeed's config has beside the strategy's file."""
        made = self.nested("zero")
        if self.training.clip == "norm":
            made["gradient_clipping"] = trainings.LIMIT["norm"]
        if self.value("trainer.full_determinism"):  # torch then fills all of ZeRO's buckets anew, in each step
            made.setdefault("zero_optimization", {}).setdefault("reduce_bucket_size", SMALL)
        return made

    def plainer(self) -> Iterator[Self]:
        """Programs with a plainer value of one feature."""
        for name, value in self.chosen:
            for other in VALUES[name][1 : VALUES[name].index(value)]:
                yield self.with_value(name, other)  # type: ignore[misc]

    @property
    def words(self) -> str:
        """As a person reads it: ``a head tied to the embedding, 2 micro-batches a step, zero.overlap_comm=False``."""
        return ", ".join(describe(name, value) for name, value in self.chosen) or "plain"

    @property
    def digest(self) -> str:
        """Short, and another one for any other program."""
        return digest(self.to_json(), size=8)

    def to_json(self) -> str:
        return json.dumps({"seed": self.seed, **self.features})


def _plain(name: str) -> Any:
    return VALUES[name][0]


def parse(text: str) -> Program:
    """Read a program back; raises UsageError for anything else."""
    return Program.of(*specs.read(text, "a program", VALUES))
