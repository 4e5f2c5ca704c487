"""A file of tensors, which ranks map and don't read: a reference's traces, or what was live beside a checkpoint."""

import io
import mmap
import pickle
from pathlib import Path
from typing import Any

import torch

ALIGNED = 64  # where a tensor begins in a file, as in memory


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, whose content stays outside: it is mapped, and not read."""

    def reducer_override(self, value: Any) -> Any:
        return (torch.from_numpy, (value.numpy(),)) if isinstance(value, torch.Tensor) else NotImplemented


def write(value: Any, file: Path) -> None:
    """Write what has copies of tensors in it, such as traces: sizes, the tensors in turn, then what has them."""
    buffers: list[pickle.PickleBuffer] = []
    content = io.BytesIO()
    _Pickler(content, 5, buffer_callback=buffers.append).dump(value)
    with open(file, "wb") as stream:
        pickle.dump([each.raw().nbytes for each in buffers], stream)
        for each in buffers:
            stream.write(bytes(-stream.tell() % ALIGNED))
            stream.write(each.raw())
        stream.write(content.getbuffer())


def read(file: Path) -> Any:
    """What was written, its tensors mapped from the file: ranks share its pages, and touch those that they compare."""
    with open(file, "rb") as stream:
        whole = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
        buffers = []
        sizes, start = pickle.load(stream), stream.tell()
        for size in sizes:
            start += -start % ALIGNED
            buffers.append(whole[start : start + size])
            start += size
    return pickle.loads(whole[start:], buffers=buffers)
