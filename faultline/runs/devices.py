"""Which device cells can run on here."""

import sys

from faultline.base.errors import UsageError, unknown
from faultline.base.interpreters import ask, command
from faultline.catalogue.loading import failures
from faultline.cells.cell import DEVICES, Cell
from faultline.cells.selection import Selection, select
from faultline.runs.driver import Engine
from faultline.runs.pool import LOCAL


def runnable(selection: Selection, engine: Engine = LOCAL) -> list[Cell]:
    """The selected cells; refuses what can't be run here, if the engine runs them here."""
    cells = select(failures(), selection)
    devices = {cell.device for cell in cells}
    if len(devices) != 1:
        raise UsageError("give cells of one device at a time" if cells else "no cell matches all of these options")
    if engine.here:
        check_device(devices.pop())
    return cells


def check_device(device: str, python: str = sys.executable) -> None:
    """Refuse CUDA where there is no GPU at all; a child looks, because this process never imports torch."""
    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    if device != "cuda":
        return
    if ask(command(python, "-c", "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)")).returncode:
        raise UsageError("torch sees no GPU here; leave out the device to run on the CPU")
