"""What failures in real trainers are built from, and what is known of TRL's trainers."""

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from faultline.strategies import Config, Setup, merged

PAIRS = "prompt chosen rejected"


@dataclass(frozen=True)
class TrlTrainer:
    """A trainer of TRL.

    `columns` are those that its rows may have; empty if nobody has tried it here. It `samples` completions, or trains
    on those of its rows. `reference`: it keeps a reference model that can follow the model; `by_beta`: only where its
    `beta` isn't zero. With its `settings`, ranks do what one process does, whatever rows each has. Its classes' names
    begin with `word`, or with its own in capitals. TRL has it with today's settings `since` a release, by its tags.
    `forces_mode`: for an older transformers, it sets use_reentrant=False by itself.
    """

    name: str
    columns: str = ""
    samples: bool = False
    reference: bool = False
    by_beta: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    word: str = ""
    since: str = ""
    forces_mode: bool = False


TRL = {
    each.name: each
    for each in (
        TrlTrainer("sft", "prompt completion", forces_mode=True),
        TrlTrainer("dpo", PAIRS, reference=True, forces_mode=True),
        TrlTrainer("grpo", "prompt", samples=True, reference=True, by_beta=True, forces_mode=True),
        TrlTrainer("kto", "prompt completion label", reference=True, settings={"loss_type": "apo_zero_unpaired"}),
        TrlTrainer(
            "rloo",
            "prompt",
            samples=True,
            reference=True,
            by_beta=True,
            since="0.22.0.dev0",
            forces_mode=True,
        ),
        TrlTrainer("reward", PAIRS, word="Reward"),
        TrlTrainer("cpo", PAIRS),
        TrlTrainer("orpo", PAIRS),
        TrlTrainer("tpo", f"{PAIRS} reference"),
        TrlTrainer("gmpo", "prompt", samples=True, reference=True),
        TrlTrainer("distillation", "prompt", samples=True, word="Distillation", since="1.1.0.dev0"),
        TrlTrainer("gold", since="0.25.0.dev0"),
        TrlTrainer("sdft", since="1.0.0.dev0"),
        TrlTrainer("sdpo", since="1.0.0.dev0"),
        TrlTrainer("a2po", since="1.6.0.dev0"),
        TrlTrainer("iw_opd", since="1.9.0.dev0"),
    )
}


def config_file(deepspeed: str, setup: Setup) -> str:
    """A config file as `accelerate config` writes it for a DeepSpeed config, put where accelerate looks for it."""
    from accelerate.commands.config import config_args

    file = Path(setup.folder) / f"accelerate-{setup.rank}.yaml"
    config_args.ClusterConfig(
        compute_environment="LOCAL_MACHINE",
        distributed_type="DEEPSPEED",
        mixed_precision=None,  # the DeepSpeed config says it
        use_cpu=False,  # DeepSpeed is not started otherwise, with or without a GPU
        debug=False,
        num_processes=setup.world_size,
        deepspeed_config={"deepspeed_config_file": deepspeed},
    ).to_yaml_file(file)
    config_args.default_yaml_config_file = config_args.default_config_file = str(file)
    return str(file)


def as_launched(deepspeed: str, setup: Setup) -> None:
    """Set what `accelerate launch` makes of such a config file for its ranks: variables, by its own code."""
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    words = ["--config_file", config_file(deepspeed, setup), "script.py"]
    ready: list[Any] = []
    with mock.patch.object(launch, "deepspeed_launcher", ready.append):
        launch.launch_command(launch.launch_command_parser().parse_args(words))
    _, variables = prepare_deepspeed_cmd_env(ready[0])
    os.environ.update({name: value for name, value in variables.items() if name.startswith("ACCELERATE_")})


def changed_config(arguments: dict[str, object], changes: Config, setup: Setup) -> dict[str, object]:
    """The arguments with changes to the DeepSpeed config that they name (see `strategies.Setup.deepspeed`), if any."""
    if "deepspeed" not in arguments:
        return arguments
    content = merged(json.loads(Path(str(arguments["deepspeed"])).read_text()), changes)
    file = Path(setup.folder) / f"changed-{setup.rank}.json"
    file.write_text(json.dumps(content))
    return {**arguments, "deepspeed": str(file)}


def from_trl(package: str, name: str) -> Any:
    """A class of TRL, wherever this release has it: trainers move from trl to trl.experimental's packages and back."""
    why = []
    for place in ("trl", f"trl.experimental.{package}"):
        try:
            return getattr(importlib.import_module(place), name)
        except (ImportError, AttributeError) as error:
            why.append(str(error))
    raise ImportError(f"TRL has no {name}: {'; '.join(why)}")
