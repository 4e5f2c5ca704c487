"""Somebody's own model in a rank: from a Python function or a config to a scenario."""

import importlib.util
import inspect
import json
import multiprocessing.process
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn.parameter import is_lazy

import tiny_models
from faultline.base.errors import Impossible, Refused
from faultline.cells.finding import first_names
from faultline.ranks import checkpointing
from faultline.ranks.job import Target, importable
from faultline.ranks.observer import Observer
from faultline.ranks.own_model import batch as own_model_batch
from faultline.ranks.own_model import collectives, draws, fsdp_units, loss_state, rows, shrink
from faultline.ranks.own_model.rows import kind
from faultline.scenario import LR, MOMENTUM, Scenario
from faultline.strategies import Setup

HALF = (torch.bfloat16, torch.float16)
LARGEST = 20_000_000  # parameters: what is checked here is trained several times over, on a CPU


@dataclass(frozen=True)
class Built:
    """What a function returns that makes a whole scenario, for a rank or for one process in place of so many ranks; or
    a trainer, of its arguments."""

    scenario: Callable[[Setup, int], Scenario]
    trainer: Callable[[dict[str, object], Setup, int], Any] | None = None


@dataclass(frozen=True)
class Module:
    """Stands for a failure's module: its scenario is the target's."""

    target: Target

    def scenario(self, variant: str, setup: Setup) -> Scenario:
        called: dict[str, None] = {}
        modules: set[torch.nn.Module] = set()
        without_compiling()
        collectives.record_calls(called, modules)
        draws.switch_off_dropout()
        with tiny_models.as_built():
            built = build(self.target)
        if isinstance(built, Built):
            return built.scenario(setup, self.target.world_size)
        called.clear()  # what makes a model trains nothing
        model, loss, batch = parts(built)
        model, cast = in_fp32(model)
        not_fed: Sequence[str] = ()
        if loss is None:
            loss = own_model_batch.loss
            batch, not_fed = own_model_batch.of(model)  # of the whole model: what shards don't take isn't left out
        model = tiny_models.loaded(model)
        model = ready(model, self.target.lora, self.target.units)
        modules.update(model.modules())
        observer = Observer(model, alone=setup.reference)
        observer.collectives = called
        together = self.target.together and setup.reference
        each = self.target.micro_batches
        shares = (1 if together else self.target.world_size) if setup.reference else 0
        observer.by_rows = not together
        holders = loss_state.holders(loss, model)
        observer.generators = draws.held_generators([*model.modules(), *holders])
        observer.known = replace(
            observer.known,
            not_fed=tuple(not_fed),
            cast=tuple(cast),  # the strategies make bf16 of it where a cell asks for that, each in its own way
            of_loss=tuple(loss_state.parameters(holders, model)),
            unregistered=tuple(loss_state.unregistered(model)),
        )
        world = self.target.world_size
        give = partial(rows.together, batch, world) if together else partial(rows.of, batch, world, each)
        whole = partial(rows.whole_apart, loss, observer, setup, give, shares * each, holders)
        return Scenario(
            model,
            partial(rows.loss_of, loss, observer, setup, rows.OneProcess(shares * each) if shares else None),
            give,
            checkpoint=checkpoint,
            observer=observer,
            optimizer=of_all,
            micro_batches=each * (shares or 1),
            shares=shares,
            beside=holders,
            whole=whole if shares > 1 else None,
        )

    def trainer(self, variant: Any, arguments: dict[str, object], setup: Setup) -> Any:
        """The trainer of a target that makes one."""
        return build(self.target).trainer(arguments, setup, self.target.world_size)


def build(target: Target) -> Any:
    """What a target's function returns, or the tiny model of its config."""
    file = Path(target.file)
    with forbid_processes():
        return call(file, target.function, target.path) if target.function else tiny(file)


def in_fp32(model: Any) -> tuple[Any, list[str]]:
    """A model whose weights and buffers of half precision are in fp32, and the types that its weights had; a type that
    it has for reasons of its own stays."""
    cast = sorted({str(each.dtype).removeprefix("torch.") for each in model.parameters() if each.dtype in HALF})
    return (model._apply(lambda each: each.float() if each.dtype in HALF else each) if cast else model), cast


def ready(model: Any, lora: Mapping[str, object], classes: Sequence[str] = ()) -> Any:
    """A model that can be trained under every strategy, with an adapter and the units that are asked for."""
    if lora:
        model = add_lora(model, lora)
    check(model)
    draws.switch_off_dropout_in(model)
    if not model.training:  # as `from_pretrained` leaves it; a part that is in eval() by intent stays so
        model.train()
    if getattr(getattr(model, "config", None), "use_cache", False):
        model.config.use_cache = False  # training with it warns, or fails where layers are recomputed
    fsdp_units.choose(model, classes)
    return model


def of_all(model: Any) -> torch.optim.Optimizer:
    """Of every parameter, as `AdamW(model.parameters())` is: one that is frozen for now moves once it isn't."""
    return torch.optim.SGD(list(model.parameters()), lr=LR, momentum=MOMENTUM)


@contextmanager
def forbid_processes() -> Iterator[None]:
    """Refuse to start processes: a script that does would run as a whole in each of them."""

    def start(self: Any) -> None:
        raise Refused("the script starts processes of its own; give a function that only builds the model")

    with mock.patch.object(multiprocessing.process.BaseProcess, "start", start):
        yield


def call(file: Path, function: str, path: Sequence[str]) -> Any:
    name, sys.path[:0] = importable(file, path)
    sys.argv = [str(file)]
    name = name if name not in sys.modules else f"{name}_"  # somebody's own datasets.py
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not callable(getattr(module, function, None)):
            known = [name for name, value in vars(module).items() if inspect.isfunction(value)]
            raise Refused(f"{file.name} has no function {function}; it has {', '.join(known) or 'none'}")
        with torch.random.fork_rng(devices=[]):
            draws.seed_default(0)  # the same weights on every rank, and in one process
            return getattr(module, function)()
    except SystemExit as error:
        raise Refused(f"{file.name} exits (code {error.code}) where it should only build the model") from error


def tiny(file: Path) -> Any:
    """A small model of the class that a config names, from a seed."""
    import transformers
    from transformers import CONFIG_MAPPING

    from tiny_models import build

    content = json.loads(file.read_text())
    kind = content["model_type"]
    if kind not in CONFIG_MAPPING:
        raise Refused(f"{file.name}: transformers {transformers.__version__} has no {kind!r}")
    config = CONFIG_MAPPING[kind].from_dict(content)
    if not content.get("architectures"):
        raise Refused(f'the config of a {kind} names no class; add "architectures": ["..."] to it')
    name = content["architectures"][0]
    if not hasattr(transformers, name):
        raise Refused(
            f"{file.name}: transformers {transformers.__version__} has no class {name!r}; name one that it has"
        )
    cls = getattr(transformers, name)
    config = type(config).from_dict(shrink.shrunk(config.to_dict()))
    text = config.get_text_config()
    if "mrope_section" in getattr(text, "ignore_keys_at_rope_validation", ()) and text.rope_parameters:
        text.rope_parameters.setdefault("mrope_section", list(shrink.SECTIONS))  # else the class takes large ones
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0
    if getattr(config, "is_encoder_decoder", False) and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0  # which a checkpoint brings else
    try:
        return build(lambda: cls(config).float(), seed=0)
    except (TypeError, ValueError, AttributeError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        without = f"; it has no value for {', '.join(unset)}" if (unset := shrink.unset(config)) else ""
        raise Refused(f"the config leaves out what {name} needs ({why}){without}; give one that names it") from error


def parts(built: Any) -> tuple[Any, Callable[..., Any] | None, Any]:
    """A model alone, which must bring its own loss, or with loss and batch."""
    model, loss, batch = built, None, None
    if isinstance(built, tuple | list) and len(built) == 3:
        model, loss, batch = built
    elif isinstance(built, Mapping) and {"model", "loss", "batch"} <= built.keys():
        model, loss, batch = built["model"], built["loss"], built["batch"]
    elif hasattr(built, "forward") and not hasattr(built, "config"):
        raise Refused("the function returns a model without a loss: return (model, loss, batch)")
    if not isinstance(model, torch.nn.Module):
        raise Refused(f"the function returns {kind(model)}: return a model, or (model, loss, batch)")
    if loss is not None and not callable(loss):
        raise Refused(f"the loss is {kind(loss)}: return a function loss(model, batch) in its place")
    return model, loss, batch


def without_compiling() -> None:
    """Run what is compiled as it was written: what watches modules here can't be compiled."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].config.disable = True


def check(model: torch.nn.Module) -> None:
    if lazy := [name for name, each in model.named_parameters() if is_lazy(each)]:
        raise Refused(f"{first_names(lazy)}: lazy, so without weights yet; call the model once in your function")
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > LARGEST:
        raise Refused(
            f"the model has {count:,} parameters: build it small, or give its config.json, which is made small"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise Refused("no parameter of the model is trainable")


def add_lora(model: Any, keywords: Mapping[str, object]) -> Any:
    """A PEFT adapter; B starts small instead of at zero, so that A has a gradient at once."""
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        try:
            adapted = get_peft_model(model, LoraConfig(**keywords))
        except (ValueError, TypeError) as error:
            raise Refused(f"PEFT refuses the adapter: {error}") from error
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.05)
    return adapted


def checkpoint(model: Any, mode: str) -> None:
    if mode == "off":
        return
    if not hasattr(model, "gradient_checkpointing_enable"):
        raise Impossible("the model has no gradient_checkpointing_enable")
    if not getattr(model, "supports_gradient_checkpointing", True):
        raise Impossible("the model does not support gradient checkpointing")
    checkpointing.enable(model, mode)
