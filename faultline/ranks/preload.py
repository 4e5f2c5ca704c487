"""What is done before a rank is there, so that no cell has to: variables of libraries, imports, caches, memory."""

import contextlib
import ctypes
import functools
import gc
import importlib
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any
from unittest import mock

from faultline.base.packages import NEEDED
from faultline.ranks import nvml

PRELOAD = """
    torch torch.distributed torch.distributed.fsdp torch.distributed.tensor torch.utils.checkpoint
    torch.nn.parallel torch.distributed.device_mesh torch._dynamo accelerate accelerate.state datasets
    deepspeed deepspeed.runtime.zero.stage3 deepspeed.runtime.zero.stage_1_and_2 peft transformers trl
    tiny_models.qwen2 tiny_models.group_decode tiny_models.per_image_vision faultline.ranks.main
""".split()
# Imported inside functions of some releases, at a second and more each: absent from others.
PRELOAD_IF_THERE = """
    deepspeed.runtime.zero.muon.muon_optimizer deepspeed.module_inject.auto_ep_layer deepspeed.comm.mori
    deepspeed.module_inject.auto_ep_presets.registry deepspeed.runtime.superoffload.superoffload_stage3
    deepspeed.ops.triton_ops torch.utils.serialization.config peft.utils.transformers_weight_conversion
    torch.profiler._cupti_monitor torch._subclasses.schema_check_mode tiny_models.gemma3 tiny_models.kit
    torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks numpy.ctypeslib
    trl.experimental.a2po trl.experimental.gkd trl.experimental.gold trl.experimental.iw_opd
    trl.experimental.online_dpo trl.experimental.sdpo
""".split()
# Attributes that lazy packages import only when they are first used.
TOUCH = {"trl": ["GRPOConfig", "GRPOTrainer", "SFTConfig", "SFTTrainer"], "transformers": ["Trainer"]}

MADV_COLLAPSE, HUGE_PAGE = 25, 2 << 20
WORLD = 2  # ranks that most cells have
LARGE, SMALL = 64 << 10, 16  # bytes of gaps in the heap: larger ones are taken in parts, smaller ones can't be


def environment(device: str = "cpu") -> dict[str, str]:
    """Variables that must be set before the first import of a library under test.

    For the CPU they hide GPUs that are there: libraries would move to them unasked. For CUDA they have cuBLAS compute
    the same numbers in each run, and CUDA number the GPUs as NVML does.
    """
    of_cuda = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    hidden = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    return (hidden if device == "cpu" else of_cuda) | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "WANDB_MODE": "disabled",
        # pyarrow's allocator would start a thread, and only a single-threaded process forks safely.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        # c10d asks for the name of each peer's address, which no hosts file has (::ffff:127.0.0.1). No try, no
        # question to a name server: cells stay off the network, and a slow server holds up no rank.
        "RES_OPTIONS": "attempts:0",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        # With Triton, inductor would start a thread and a process, to be ready to compile.
        "TORCH_WARM_POOL": "0",
        # Ask NVML, not CUDA, whether there is a GPU: initialised CUDA does not survive a fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


def everything() -> None:
    """Make this process ready to fork ranks; takes seconds, and saves each rank of a cell as many."""
    remember_packages()
    remember_expressions()
    nvml.keep_out()
    with decorated_functions_as_they_are():
        for name in PRELOAD:
            importlib.import_module(name)
        for name in PRELOAD_IF_THERE:
            # Whatever an experimental module raises: cells that need it will say so, the others can run.
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        for package, names in TOUCH.items():
            for name in names:
                getattr(sys.modules[package], name)
    compile_nothing()
    wait_for_what_is_gathered()
    seed_what_is_there()
    mark_no_ranges()
    warm()
    print_little()
    gc.collect()
    gc.freeze()
    fill_gaps()
    gc.set_threshold(100_000)
    collapse()


@contextlib.contextmanager
def decorated_functions_as_they_are() -> Iterator[None]:
    """Leave out `torch.compile` as a decorator of what is imported.

    For DeepSpeed's Muon it imports inductor: a sixth of a server's start, and 40 MB of every rank.
    """
    torch: Any = importlib.import_module("torch")
    compiled = torch.compile
    torch.compile = lambda model=None, **_: model or (lambda function: function)
    try:
        yield
    finally:
        torch.compile = compiled


def compile_nothing() -> None:
    """Keep DeepSpeed from compiling its shared memory collectives with g++ inside a cell.

    With two ranks that fails at random; gloo does the same work without them.
    """
    importlib.import_module("deepspeed").ops.__compatible_ops__["deepspeed_shm_comm"] = False


def wait_for_what_is_gathered() -> None:
    """Let ZeRO-3 wait for every parameter that it gathers over gloo.

    Before 0.19.8 it waits for the last one alone, and NCCL ends that after all others. Gloo doesn't, and weights were
    at random what their memory had been (https://github.com/deepspeedai/DeepSpeed/pull/8539).
    """
    distributed: Any = importlib.import_module("torch.distributed")
    comm: Any = importlib.import_module("deepspeed.comm")
    init: Any = importlib.import_module("deepspeed.runtime.zero.partition_parameters").Init
    gather = init._allgather_params_coalesced

    def waiting(collective: Any) -> Any:
        def done(*args: Any, **kwargs: Any) -> Any:
            handle = collective(*args, **kwargs)
            handle.wait()
            return handle

        return done

    @functools.wraps(gather)
    def all_gathered(*args: Any, **kwargs: Any) -> Any:
        if distributed.get_backend() != "gloo":
            return gather(*args, **kwargs)
        every = {name: waiting(getattr(comm, name)) for name in ("all_gather", "all_gather_into_tensor")}
        with mock.patch.multiple(comm, **every):
            return gather(*args, **kwargs)

    init._allgather_params_coalesced = all_gathered


def remember_packages() -> None:
    """Read what is installed once: accelerate parses it forty times a cell, a tenth of a trainer's processor time.

    It can't change while this process lives.
    """
    metadata.Distribution.from_name = functools.cache(metadata.Distribution.from_name)  # type: ignore[method-assign]
    parse = vars(metadata.Distribution)["metadata"].fget
    metadata.Distribution.metadata = property(functools.cache(parse))  # type: ignore[method-assign, assignment]
    for name in NEEDED:
        with contextlib.suppress(metadata.PackageNotFoundError):
            metadata.version(name)


def remember_expressions() -> None:
    """Keep every regular expression: transformers has more than the 512 that Python keeps, at a millisecond each."""
    re._MAXCACHE = 1 << 16  # type: ignore[attr-defined]


def seed_what_is_there() -> None:
    """Let `torch.manual_seed` leave out devices that aren't there: for each of them it keeps a stack, as text."""
    for name in ("cuda", "xpu", "mtia"):
        device = getattr(sys.modules["torch"], name, None)  # older releases lack some
        if device and not device.is_available():
            device.manual_seed_all = lambda seed: None


def mark_no_ranges() -> None:
    """Tell DeepSpeed to mark nothing for NVIDIA's profiler: under ZeRO-3 that is a thousand calls a step."""
    importlib.import_module("deepspeed").utils.nvtx.enable_nvtx = False


def warm() -> None:
    """Fill what libraries cache at first use, so that no cell pays for it: tables of regular expressions, data."""
    from faultline import strategies
    from tiny_models import data, qwen2

    strategies.names()
    qwen2.add_lora(qwen2.qwen2())
    data.text_rows(0)
    with contextlib.suppress(ImportError):  # transformers before 4.50 has no Gemma3
        data.image_text_batch(0, 0, 1, "dummy")


@functools.cache
def for_fsdp2() -> None:
    """Do once what only ranks of FSDP2 gain by."""
    with contextlib.suppress(Exception):  # an older torch has no such group, or keeps fully_shard elsewhere
        warm_shards()


def warm_shards() -> None:
    """Train sharded parameters in a process group that sends nothing: what begins with it was a sixth of an FSDP2 cell.

    Its mesh has a name that no cell's has: what DTensor keeps for a mesh is one rank's, and would be wrong on others.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from faultline import scenario
    from tiny_models import qwen2

    torch: Any = sys.modules["torch"]
    if torch.backends.cuda.is_built():  # CUDA must not begin, nor autograd's threads, which need no GPU
        return
    torch.distributed.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    try:
        with torch.random.fork_rng(devices=[]):
            model = qwen2.qwen2()
            mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("of no cell",))
            for module in (*model.model.layers, model):
                fully_shard(module, mesh=mesh)
            optimizer = scenario.sgd(model)
            for _ in range(2):  # momentum begins in the first step, and goes on in the second
                ids = torch.arange(16).reshape(2, 8)
                model(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        torch.distributed.destroy_process_group()


def print_little() -> None:
    """Shorten how tensors are printed: ZeRO-3 formats every parameter for messages that nobody is shown."""
    sys.modules["torch"].set_printoptions(threshold=0, edgeitems=1)


def fill_gaps() -> None:
    """Take what is free within the heap, so that ranks allocate at its end: a tenth fewer pages are copied for them."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    end, size = libc.sbrk(ctypes.c_ssize_t(0)), LARGE
    while size > SMALL:
        if not 0 < (libc.malloc(ctypes.c_size_t(size - SMALL)) or 0) < end:
            size = size * 3 // 4  # no gap is left for this much


def collapse() -> None:
    """Move this process's memory into huge pages: forking and ending a rank are a third faster then.

    Linux does it on request since 6.1 (madvise(2), MADV_COLLAPSE); elsewhere this does nothing.
    """
    madvise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as file:
        areas = [line.split() for line in file]
    for place, mode, *_, name in (area if len(area) > 5 else [*area, ""] for area in areas):
        if mode.startswith("rw") and name in ("", "[heap]"):
            start, end = (int(address, 16) // HUGE_PAGE for address in place.split("-"))
            for page in range(start + 1, end):
                madvise(ctypes.c_void_p(page * HUGE_PAGE), ctypes.c_size_t(HUGE_PAGE), MADV_COLLAPSE)
