"""Somebody's own model in a rank: from a Python function or a config to a scenario."""

from __future__ import annotations

import importlib.util
import inspect
import json
import multiprocessing.process
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from faultline.base.errors import Impossible, Refused
from faultline.ranks import checkpointing
from faultline.ranks.observer import Observer, tensors
from faultline.ranks.own_model import batch as own_model_batch
from faultline.ranks.own_model import shrink
from faultline.scenario import LR, MOMENTUM, Scenario, mapped, to
from faultline.strategies import ROWS, Setup
from faultline.strategies.shared import SHARES, blocks

LARGEST = 20_000_000  # parameters: what is checked here is trained several times over, on a CPU


class Module:
    """Stands for a failure's module: its scenario is the target's.

    A target has `file`, `function` (empty: the file is a config), `lora` (keywords of LoraConfig, empty without), `cwd`
    (the folder that its ranks work in) and `world_size`: among how many ranks the rows of a batch are shared, in the
    reference too.
    """

    def __init__(self, target: Mapping[str, Any]) -> None:
        self.target = target

    def scenario(self, variant: str, setup: Setup) -> Scenario:
        file, world = Path(self.target["file"]), self.target["world_size"]
        with alone():
            built = _call(file, self.target["function"]) if self.target["function"] else tiny(file)
        model, loss, batch = _parts(built)
        called = f"{file.name}:{self.target['function']}"
        if not isinstance(model, torch.nn.Module):
            raise Refused(f"{called} gives {kind(model)}: return a model, or (model, loss, batch)")
        if loss is not None and not callable(loss):
            raise Refused(f"the loss is {kind(loss)}: return a function loss(model, batch) in its place")
        if hasattr(model, "_orig_mod"):
            raise Refused(f"{called} gives a compiled model: return it as it was before torch.compile")
        kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
        if kinds - {torch.float32}:
            model.float()  # the strategies make bf16 of it where a cell asks for that, each in its own way
        if self.target["lora"]:
            model = add_lora(model, dict(self.target["lora"]))
        check(model)
        model.train()
        switch_off(getattr(model, "config", None))
        keep_together(model)
        name_blocks(model)
        observer = Observer(model)
        observer.cast = sorted(str(kind).removeprefix("torch.") for kind in kinds - {torch.float32})
        if loss is None:
            loss = own_model_batch.loss
            batch, observer.not_fed = own_model_batch.of(model)
        give = batch if callable(batch) else lambda step, rank, world: share(batch, rank, world)

        def shares(step: int, rank: int, world_size: int) -> list[Any]:
            ranks = range(world) if world_size == 1 else [rank]
            return [(number, give(step, number, world)) for number in ranks]

        alone_and_plain = setup.world_size == 1 and setup.checkpointing == "off"

        def mean(model: Any, batch: Any) -> torch.Tensor:
            """The mean over the shares: what training on as many ranks does, however a loss is scaled."""
            found = []
            # Numbers as bf16 where DeepSpeed made the model so, as Trainer does.
            own = next(model.parameters()).dtype
            dtype = own if own == torch.bfloat16 or observer.cast else None
            for number, part in batch:
                observer.share = number
                found.append(scalar(loss(model, to(part, setup.device, dtype))))
            if alone_and_plain and not any(part.requires_grad for part in found):
                raise Refused("the loss has no graph: no trainable parameter takes part in it, or it was detached")
            whole = torch.stack(found).mean()
            if alone_and_plain and not whole.isfinite():
                raise Refused(f"the loss is {whole.item()} in one process already, so there is nothing to compare")
            if alone_and_plain and len(found) > 1 and len({part.item() for part in found}) == 1:
                raise Refused("every rank's rows give the same loss: give rows that differ, or a mix-up can't be seen")
            return whole

        return Scenario(model, mean, shares, checkpoint=checkpoint, observer=observer, optimizer=of_all)


def kind(value: Any) -> str:
    """What a value is, in words: an int, a float."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def of_all(model: Any) -> torch.optim.Optimizer:
    """Of every parameter, as `AdamW(model.parameters())` is: one that is frozen for now moves once it isn't."""
    return torch.optim.SGD(list(model.parameters()), lr=LR, momentum=MOMENTUM)


@contextmanager
def alone() -> Iterator[None]:
    """Refuse to start processes: a script that does would run as a whole in each of them."""

    def start(self: Any) -> None:
        raise Refused("the script starts processes of its own; give a function that only builds the model")

    with mock.patch.object(multiprocessing.process.BaseProcess, "start", start):
        yield


def _call(file: Path, function: str) -> Any:
    sys.path.insert(0, str(file.parent))
    sys.argv = [str(file)]
    name = file.stem if file.stem not in sys.modules else f"{file.stem}_"  # somebody's own datasets.py
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not callable(getattr(module, function, None)):
            known = [name for name, value in vars(module).items() if inspect.isfunction(value)]
            raise Refused(f"{file.name} has no function {function}; it has {', '.join(known) or 'none'}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # the same weights on every rank
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
    name = (content.get("architectures") or [""])[0] or _usual(kind)
    cls = getattr(transformers, name, None)
    if cls is None:
        raise Refused(
            f"{file.name}: transformers {transformers.__version__} has no class {name!r}; name one of its own"
        )
    config = type(config).from_dict(shrink.shrunk(config.to_dict()))
    return build(lambda: cls(config).float(), seed=0)


def _usual(kind: str) -> str:
    from transformers.models.auto import modeling_auto

    for names in ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"):
        if kind in getattr(modeling_auto, names):
            found = getattr(modeling_auto, names)[kind]
            return found if isinstance(found, str) else found[0]
    raise Refused(f'the config of a {kind} names no class; add "architectures": ["..."] to it')


def _parts(built: Any) -> tuple[Any, Callable[..., Any] | None, Any]:
    """A model alone, which must bring its own loss, or with loss and batch."""
    if isinstance(built, tuple | list) and len(built) == 3:
        return built[0], built[1], built[2]
    if isinstance(built, Mapping) and {"model", "loss", "batch"} <= built.keys():
        return built["model"], built["loss"], built["batch"]
    if hasattr(built, "forward") and not hasattr(built, "config"):
        raise Refused("the function returns a model without a loss: return (model, loss, batch)")
    return built, None, None


def check(model: torch.nn.Module) -> None:
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > LARGEST:
        raise Refused(
            f"the model has {count:,} parameters: build it small, or give its config.json, which is made small"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise Refused("no parameter of the model is trainable")


def switch_off(config: Any) -> None:
    """The cache of a model that generates: training with it warns, or fails where layers are recomputed."""
    if getattr(config, "use_cache", False):
        config.use_cache = False


def name_blocks(model: torch.nn.Module) -> None:
    """Give a model that names no blocks for FSDP those that it has in lists, else its parts; never itself."""
    if blocks(model):
        return
    inside = [layer for module in model.modules() if isinstance(module, torch.nn.ModuleList) for layer in module]
    names: set[str] = set()
    for among in (inside, model.children()):
        names = names or {type(module).__name__ for module in among if _wrappable(module, model)}
    model._no_split_modules = sorted(names)


def _wrappable(module: torch.nn.Module, model: torch.nn.Module) -> bool:
    """Whether it can be a unit: it has a forward pass and parameters of its own, and is of another class than all."""
    if isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict) or type(module) is type(model):
        return False
    return any(True for _ in module.parameters()) and not getattr(module, SHARES, False)


def keep_together(model: torch.nn.Module) -> None:
    """Mark the modules that can't be an FSDP unit: one of their parameters is in a module outside of them as well.

    `fully_shard` and FSDP1 ask for shared parameters to be in one unit, which the root then is.
    """
    places: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(parameter, []).append(name)
    names: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(f"{name}." if name else "")
    for module, own in names.items():
        if not all(place.startswith(tuple(own)) for p in module.parameters() for place in places[p]):
            setattr(module, SHARES, True)


def add_lora(model: Any, keywords: dict[str, Any]) -> Any:
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


def share(batch: Any, rank: int, world_size: int) -> Any:
    """A rank's rows of a batch, nested or not: of every tensor its part along dimension 0."""

    def mine(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim:
            return tensor
        if len(tensor) % world_size:
            raise Refused(
                f"the batch has a tensor {list(tensor.shape)}, which {world_size} ranks can't share by its rows;"
                f" give {ROWS} rows, or a function batch(step, rank, world_size)"
            )
        part = len(tensor) // world_size
        return tensor[rank * part : (rank + 1) * part]

    found = mapped(batch, mine)
    if not any(True for _ in tensors(found)):
        raise Refused(f"the batch is {kind(batch)} without a tensor: give tensors, in dictionaries or lists")
    return found


def scalar(loss: Any) -> torch.Tensor:
    """A loss, or the one of a model's output; raises Refused for what can't be trained on."""
    found = getattr(loss, "loss", None) if not isinstance(loss, torch.Tensor) else loss
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        raise Refused(f"the loss is {kind(loss)}, not a tensor with one number")
    return found.reshape(())
