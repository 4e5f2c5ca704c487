"""The rank server: imports the libraries under test once, then forks fresh ranks for each cell.

It speaks JSON lines on its standard input and output, about one cell at a time.
A request is ``{"world_size", "job"}`` or ``{"kill": true}``; an event has `pids`,
or `rank` with `report` or `exit`, or `done` once every rank is reaped.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from importlib import metadata
from typing import Any

PRELOAD = """
    torch torch.distributed torch.distributed.fsdp torch.distributed.tensor torch.utils.checkpoint
    torch.nn.parallel torch.distributed.device_mesh torch._dynamo accelerate accelerate.state datasets
    deepspeed deepspeed.runtime.zero.stage3 deepspeed.runtime.zero.stage_1_and_2 peft transformers trl
    tiny_models.gemma3 tiny_models.qwen2 tiny_models.group_decode tiny_models.per_image_vision faultline.rank
""".split()
# Imported inside functions of some releases, at a second and more each: absent from others.
PRELOAD_IF_THERE = """
    deepspeed.runtime.zero.muon.muon_optimizer deepspeed.module_inject.auto_ep_layer deepspeed.comm.mori
    deepspeed.module_inject.auto_ep_presets.registry deepspeed.runtime.superoffload.superoffload_stage3
    deepspeed.ops.triton_ops torch.utils.serialization.config peft.utils.transformers_weight_conversion
    torch.profiler._cupti_monitor
""".split()
# Attributes that lazy packages import only when they are first used.
TOUCH = {"trl": ["GRPOConfig", "GRPOTrainer", "SFTConfig", "SFTTrainer"], "transformers": ["Trainer"]}

STACK = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed")

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def environment() -> dict[str, str]:
    """Variables that must be set before the first import of a library under test."""
    return {
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
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        # Ask NVML, not CUDA, whether there is a GPU: initialised CUDA does not survive a fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


def preload() -> None:
    for name in PRELOAD:
        importlib.import_module(name)
    for name in PRELOAD_IF_THERE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for package, names in TOUCH.items():
        for name in names:
            getattr(sys.modules[package], name)
    compile_nothing()
    warm()


def compile_nothing() -> None:
    """Keep DeepSpeed from compiling its shared memory collectives with g++ inside a cell.

    With two ranks that fails at random; gloo does the same work without them.
    """
    importlib.import_module("deepspeed").ops.__compatible_ops__["deepspeed_shm_comm"] = False


def versions() -> dict[str, str]:
    """The stack: what is installed beside this server, by distribution."""
    return {name: metadata.version(name) for name in STACK}


def warm() -> None:
    """Fill what libraries cache at first use, so that no cell pays for it: tables of regular expressions, data."""
    from faultline import strategies
    from tiny_models import data, qwen2

    strategies.names()
    qwen2.add_lora(qwen2.qwen2())
    data.text_rows(0)
    data.image_text_batch(0, 0, 1, "dummy")


def describe() -> dict[str, Any]:
    """The proof that forking is safe, for the evidence of every cell."""
    torch = sys.modules["torch"]
    return {"threads": len(os.listdir("/proc/self/task")), "cuda_initialised": torch.cuda.is_initialized()}


def main() -> None:
    requests = os.dup(0)
    events = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    started = time.monotonic()
    preload()
    gc.collect()
    gc.freeze()
    serve(requests, events, {"ready": True, "seconds": time.monotonic() - started, "versions": versions()} | describe())


def serve(requests: int, events: int, greeting: dict[str, Any]) -> None:
    """Answer requests, one cell at a time, until the supervisor closes its end; what still runs dies then."""
    send(events, greeting)
    buffers = {requests: b""}
    pipes: list[int] = []  # of the running cell's ranks, by rank
    pids: list[int] = []
    while True:
        readable, _, _ = select.select([*buffers], [], [])
        for fd in readable:
            chunk = os.read(fd, 1 << 20)
            *lines, buffers[fd] = (buffers[fd] + chunk).split(b"\n")
            if fd == requests:
                for request in map(json.loads, lines):
                    if "kill" in request:
                        statuses = kill(pids)
                        for pipe in pipes:
                            buffers.pop(pipe, None)
                            os.close(pipe)
                        pids, pipes = [], []
                        send(events, {"done": statuses})
                    else:
                        pids, pipes = start(request, (requests, events))
                        buffers |= dict.fromkeys(pipes, b"")
                        send(events, {"pids": pids})
                    readable = [fd]  # the other descriptors may be closed by now
                if not chunk:
                    kill(pids)
                    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
                    return
            else:
                rank = pipes.index(fd)
                for line in lines:
                    send(events, {"rank": rank, "report": json.loads(line)})
                if not chunk:
                    del buffers[fd]
                    send(events, {"rank": rank, "exit": peek(pids[rank])})
            if readable == [requests]:
                break


def peek(pid: int) -> int:
    """How a rank ended (negative: by which signal), leaving it to be reaped with its cell."""
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert status
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def send(events: int, event: dict[str, Any]) -> None:
    data = json.dumps(event).encode() + b"\n"
    while data:
        data = data[os.write(events, data) :]


def start(request: dict[str, Any], mine: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Fork the ranks of a cell into a process group of their own; give back pids and pipes by rank."""
    pipes: list[int] = []
    pids: list[int] = []
    for rank in range(request["world_size"]):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setpgid(0, pids[0] if pids else 0)
                for fd in (*mine, reading, *pipes):
                    os.close(fd)
                become_rank(request["job"], rank, writing)
            finally:
                os._exit(70)
        os.close(writing)
        try:
            os.setpgid(pid, pids[0] if pids else pid)
        except OSError:
            pass  # the child did it first and may even be gone
        pipes.append(reading)
        pids.append(pid)
    return pids, pipes


def become_rank(job: dict[str, Any], rank: int, pipe: int) -> None:
    """In the child: run, report on the pipe, and wait to be killed.

    A rank never leaves by itself: one that returns can hang in gloo's
    destructor or reset a connection that a slower peer still reads.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    log = os.open(f"{job['folder']}/rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    stacks = open(f"{job['folder']}/rank{rank}.stack", "w")  # noqa: SIM115 - must outlive this function
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    at_fork = describe()
    report = importlib.import_module("faultline.rank").main(job, rank)
    report["evidence"]["at_fork"] = at_fork
    send(pipe, report)
    while True:
        signal.pause()


def kill(pids: list[int]) -> list[int]:
    """End a cell's process group and everything that descends from it; give back the ranks' exit codes."""
    if not pids:
        return []
    try:
        os.killpg(pids[0], signal.SIGKILL)
    except ProcessLookupError:
        pass
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return statuses
        if pid == 0:
            # A descendant that left the group was handed to this process, its subreaper.
            for child in children():
                os.kill(child, signal.SIGKILL)


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


if __name__ == "__main__":
    main()
