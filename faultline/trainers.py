"""What failures in real trainers are built from."""

import importlib
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

from faultline.strategies import Config, Setup, merged


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
