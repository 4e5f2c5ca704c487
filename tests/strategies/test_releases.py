"""What older releases lack: a cell there is impossible, and never another strategy under the same name."""

import os
import sys
from types import SimpleNamespace

import pytest

from faultline.base.errors import Impossible
from faultline.strategies import fsdp2, releases


def before_fsdp2(sharding_strategy="", cpu_ram_efficient_loading=True):
    return SimpleNamespace(sharding_strategy=sharding_strategy)


def with_fsdp2(fsdp_version=1, sharding_strategy="", cpu_ram_efficient_loading=True):
    return SimpleNamespace(fsdp_version=fsdp_version, sharding_strategy=sharding_strategy)


@pytest.fixture
def accelerate(monkeypatch):
    """Accelerate's part is played, by a plugin that the test chooses; variables are put back."""
    monkeypatch.setattr(os, "environ", {})

    def of(plugin):
        monkeypatch.setitem(sys.modules, "accelerate", SimpleNamespace(FullyShardedDataParallelPlugin=plugin))

    return of


def test_fsdp2_is_impossible_before_accelerate_has_it(accelerate):
    """Breaks when FSDP1 runs where FSDP2 was asked for, or a TypeError looks like a failure of the stack."""
    accelerate(before_fsdp2)
    with pytest.raises(Impossible, match="no FSDP2"):
        releases.fsdp_plugin(2)
    with pytest.raises(Impossible, match="no FSDP2"):
        fsdp2.arguments(fsdp2.Options(), None)
    assert releases.fsdp_plugin(1, sharding_strategy="FULL_SHARD").sharding_strategy == "FULL_SHARD"


@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp2_is_said_in_both_ways(accelerate, reshard):
    """Breaks when transformers 4, which takes FSDP2 from variables, or 5, from the config, runs FSDP1."""
    accelerate(with_fsdp2)
    assert releases.fsdp_plugin(2).fsdp_version == 2
    answer = fsdp2.arguments(fsdp2.Options(reshard), None)
    assert answer["fsdp_config"]["version"] == 2 and answer["fsdp_config"]["reshard_after_forward"] is reshard
    assert os.environ["FSDP_VERSION"] == "2" and os.environ["FSDP_RESHARD_AFTER_FORWARD"] == str(reshard).lower()
