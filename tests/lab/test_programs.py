"""Programs: what they are made of, and how chance draws them."""

import dataclasses
import inspect
import json
import tomllib
from collections.abc import Iterator
from itertools import islice
from pkgutil import resolve_name

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import UsageError
from faultline.base.paths import LAB, ROOT
from lab.explore import case as cases
from lab.explore import known
from lab.explore.case import Case
from lab.programs import drawing, fault, spec
from lab.programs.descriptions import describe
from lab.programs.program import VALUES, Program, parse
from lab.programs.settings import ACCELERATE, SETTINGS, TRAINER, TRAINERS, TRL

chosen = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()})
programs = st.builds(Program.of, st.integers(0, 999), chosen)


@given(programs, st.sampled_from(["ddp", "zero2", "fsdp2"]))
def test_law_a_program_is_what_is_not_plain_of_it_makes_sense_once_and_is_read_back(program, strategy):
    """Breaks when one program has two digests, shrinking never ends, or one is changed again where it is planted; when
    a finding under DDP names a setting of DeepSpeed; or when its spec.json replays something else than was seen."""
    once = drawing.sensible(program)
    assert drawing.sensible(once) == once
    assert {*once.chosen} <= {*program.chosen} or once.seed == program.seed
    assert all(value != VALUES[name][0] for name, value in program.chosen)
    assert program.with_only(()).words == "plain"
    pruned = Case(program, "ddp").pruned
    families = {SETTINGS[name].family for name in pruned.features if name in SETTINGS}
    assert families <= {"ddp", ACCELERATE, *TRAINERS} and {*pruned.chosen} <= {*program.chosen}
    case, read = Case(program, strategy), parse(program.to_json())
    assert read == program and read.digest == program.digest
    assert cases.parse(json.dumps(case.as_json())) == case


def test_a_seed_draws_the_same_programs():
    """Breaks when an exploration can't be run again."""
    first, again, other = (list(islice(drawing.drawn(seed), 60)) for seed in (3, 3, 4))
    assert first == again != other
    assert len({each.digest for each in first}) == 60


def test_programs_near_what_is_known_are_drawn():
    """Breaks when nobody looks beside a failure, or the failure itself is drawn again and again."""
    near = {"tied": "head", "accumulate": 2, "zero.overlap_comm": True}
    sizes = [
        sum(program.features.get(name) == value for name, value in near.items())
        for program in islice(drawing.drawn(3, [near]), 200)
    ]
    assert sizes.count(3) < 5 < sizes.count(2)
    assert {"accumulating": "by hand"} in known.together([])
    assert all(value in VALUES[key][1:] for each in known.together([]) for key, value in each.items())


def test_what_a_release_may_have_changed_comes_first():
    """Breaks when an exploration of a new DeepSpeed begins with settings of DDP."""
    first = [*islice(drawing.drawn(3, changed={"deepspeed"}), 50)]
    assert all(any("deepspeed" in drawing.packages(name) for name in each.features) for each in first)
    assert all(each.in_trl for each in islice(drawing.drawn(3, changed={"trl"}), 50))


def test_a_program_of_trl_has_what_its_trainer_takes():
    """Breaks when a trainer gets what no model of transformers has, or they leave no time for anything else."""
    every = [*islice(drawing.drawn(3), 1000)]
    of_trl = [program for program in every if program.in_trl]
    assert {program.trainer for program in of_trl} == {*TRL}
    assert 100 < len(of_trl) < 300
    for program in of_trl:
        families = {SETTINGS[name].family for name in program.features if name in SETTINGS}
        assert families <= {"zero", TRAINER, program.trainer}
        assert program.features.keys().isdisjoint(drawing.NOT_IN_TRL)


@pytest.mark.nightly
def test_pairs_are_covered_before_anything_comes_twice():
    """Breaks when two features never meet however long one looks."""
    possible = [pair for pair in drawing.pairs() if {*pair} <= {*drawing.sensible(Program.of(0, dict(pair))).chosen}]
    assert len(possible) > 4000
    had = set()
    for program in islice(drawing.drawn(5), 2 * len(possible)):  # a program of TRL is every sixth only
        had |= {frozenset((one, other)) for one in program.chosen for other in program.chosen if one != other}
    assert not [pair for pair in possible if frozenset(pair) not in had]


def test_every_feature_has_its_words():
    """Breaks when a new feature, or a new value of one, can't be printed; or two features read alike."""
    every = [(name, value) for name, values in VALUES.items() for value in values[1:]]
    assert len({describe(name, value) for name, value in every}) == len(every)
    assert Program.of(0, {"tied": "head", "zero.overlap_comm": False}).words == (
        "a head tied to the embedding, zero.overlap_comm=False"
    )


@pytest.mark.parametrize("text", ["", "[]", '{"seed": "1"}', '{"layers": 9}', '{"colour": "red"}'])
def test_anything_else_is_refused(text):
    """Breaks when a spec with a typing error trains as another one."""
    for read in (parse, cases.parse, spec.parse, fault.parse):
        with pytest.raises(UsageError):
            read(text)


def test_deterministic_buckets_are_small():
    """Breaks when ZeRO fills gigabytes in each step, and a slow machine is reported as a hang."""
    chosen = {"through": "trainer", "trainer.full_determinism": True, "zero.overlap_comm": False, "clip": "norm"}
    made = Program.of(1, chosen).deepspeed
    assert made["zero_optimization"] == {"overlap_comm": False, "reduce_bucket_size": 1_000_000}
    assert made["gradient_clipping"] == 0.1
    assert "zero_optimization" not in Program.of(1, {"clip": "norm"}).deepspeed


# The settings of engines and trainers: each is drawn, or has a reason.

KINDS = ("bool", "int", "float")


def arguments(name: str) -> Iterator[str]:
    """The arguments of a function that are switches or numbers, or None unless they are given."""
    for each in inspect.signature(resolve_name(name)).parameters.values():
        if isinstance(each.default, (bool, int, float)) or (each.default is None and each.name != "self"):
            yield each.name


def of_accelerate() -> Iterator[str]:
    for each in inspect.signature(resolve_name("accelerate:Accelerator")).parameters.values():
        if isinstance(each.default, (bool, int)):
            yield each.name
    yield from (each.name for each in dataclasses.fields(resolve_name("accelerate.utils:GradientAccumulationPlugin")))


def of_zero() -> Iterator[str]:
    """By their names in a config, which some have beside another one."""
    for name, each in resolve_name("deepspeed.runtime.zero.config:DeepSpeedZeroConfig").model_fields.items():
        yield each.alias or name


def of_trainer() -> Iterator[str]:
    for each in dataclasses.fields(resolve_name("transformers:TrainingArguments")):
        if any(kind in str(each.type) for kind in KINDS) and "dict" not in str(each.type):
            yield each.name


SIGNATURES = {
    "ddp": lambda: arguments("torch.nn.parallel:DistributedDataParallel"),
    "fsdp1": lambda: arguments("torch.distributed.fsdp:FullyShardedDataParallel"),
    "fsdp2": lambda: arguments("torch.distributed.fsdp:fully_shard"),
    "zero": of_zero,
    "accelerate": of_accelerate,
    "trainer": of_trainer,
}


@pytest.mark.parametrize("family", SIGNATURES)
def test_every_switch_and_number_is_drawn_or_left_out_for_a_reason(family):
    """Breaks when a release has a new setting, lacks one that is left out, or one is both drawn and left out."""
    there = {name for name in SIGNATURES[family]() if f"{family}.{name}" not in SETTINGS}
    table = tomllib.loads((LAB / "programs" / "left_out.toml").read_text())
    assert there == {name for names in table[family].values() for name in names.split()}
    assert table[family].keys() <= table["reasons"].keys()


def test_the_number_of_pairs_is_that_of_the_docs():
    """Breaks when settings or features are added, and docs/explore.md has the number of before."""
    assert f"{len(drawing.pairs()):,} pairs" in " ".join((ROOT / "docs" / "explore.md").read_text().split())
