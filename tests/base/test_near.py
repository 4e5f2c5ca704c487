"""What is suggested for a name that doesn't exist."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline import strategies
from faultline.base.near import near, slip
from faultline.base.packages import NEEDED
from faultline.catalogue.loading import failures
from faultline.strategies import naming

STRATEGIES = strategies.names()


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("gpu", ("cpu", "cuda"), ["cuda"]),
        ("deepspeed", STRATEGIES, ["zero*"]),
        ("ZeRO-3", STRATEGIES, ["zero3"]),
        ("FSDP2", STRATEGIES, ["fsdp2"]),
        ("grpo", failures(), ["grpo_lora_no_grad"]),
        ("double_reduction", failures(), ["zero_double_reduction"]),
        ("diagnos", ("diagnose", "check"), ["diagnose"]),
        ("zero_double_reductoin", failures(), ["zero_double_reduction"]),
        *((name, STRATEGIES, []) for name in ("nope", "foo", "x", "")),
        *((name, [other], []) for name, other in (("seen", "server"), ("rank", "trains"), ("fp16", "fsdp2"))),
    ],
)
def test_what_people_call_it_is_understood_and_nothing_suggested_where_nothing_is_like_it(name, known, meant):
    """Breaks when three letters of four suggest a word that nobody meant."""
    assert near(name, [*known], naming.aliases() | {"gpu": "cuda"}) == meant


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=20), unique=True, max_size=10))
def test_a_suggestion_is_a_known_name_and_a_known_name_suggests_itself(name, known):
    assert set(near(name, known)) <= {*known}
    for each in known:
        assert each in near(each, known)


def test_a_slip_of_the_pen_is_seen_and_another_package_is_none():
    """Breaks when a package that nobody meant is asked of an index, or a real one can't be asked about."""
    slips = ["tlr", "trll", "tl", "transformer", "transfromers", "deepsped", "dataset", "PFET"]
    others = ["torchao", "torchvision", "xformers", "bitsandbytes", "liger-kernel", "vllm", "numpy"]
    assert [name for name in (*slips, *others) if slip(name, NEEDED)] == slips
