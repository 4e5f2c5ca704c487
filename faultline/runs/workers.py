"""How many cells run at a time: as many as were asked for, and as memory and GPUs allow."""

from collections.abc import Iterable, Sequence

from faultline.base import machine
from faultline.base.text import count
from faultline.cells.cell import Cell
from faultline.runs import gpus
from faultline.runs.gpus import Gpus

# What a rank server may take of the machine's memory, and each of its ranks, in bytes. `make bench` measures 0.5 GB for
# a server and two ranks on the CPU; those of trainers take more. With CUDA, each rank has its libraries and a context.
SERVER = {"cpu": 1 << 30, "cuda": 0}
RANK = {"cpu": 1 << 28, "cuda": 3 << 30}


def bounded(cells: Sequence[Cell], asked: int, per_gpu: int = 1) -> tuple[int, str]:
    """How many workers run cells, `per_gpu` of them on each GPU; and why that is fewer than asked for. At least one."""
    device = cells[0].device
    wanted = max(1, min(asked, len(cells)))
    free, takes = machine.memory(), memory(device, ranks(cells))
    fewer = [
        (max(1, free // takes), f"each may take {takes / 2**30:.1f} GB of memory, and {free / 2**30:.1f} GB are free")
    ]
    if device == "cuda":
        here = gpus.here()
        sets, size = sized(cells, here)
        has = f"each has {count(size, 'GPU')} for itself" if per_gpu == 1 else f"{per_gpu} at a time share a GPU"
        fewer.append((sets * per_gpu, f"{has}, and there {'is' if len(here.gpus) == 1 else 'are'} {len(here.gpus)}"))
    least, why = min(fewer)
    return (least, f"{count(least, 'worker')}, not {wanted}: {why}") if least < wanted else (wanted, "")


def memory(device: str, ranks: int) -> int:
    """What a worker whose cells have so many ranks may take, in bytes."""
    return SERVER[device] + RANK[device] * ranks


def ranks(cells: Iterable[Cell]) -> int:
    """The most ranks that any of these cells has, also in the half of a life that saves."""
    return max(max(cell.world_size, cell.saved_by) for cell in cells)


def sized(cells: Sequence[Cell], here: Gpus) -> tuple[int, int]:
    """How many sets of GPUs there are, and how many GPUs are in one: as many as most cells want."""
    wants = sorted(min(gpus.needed(cell), len(here.gpus)) for cell in cells)
    size = max(1, wants[len(wants) // 2])
    return max(1, len(here.gpus) // size), size
