"""A spec or a program as `check` takes it: as a file of its own, which it trains like anybody's."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

from faultline.strategies import Setup
from lab.programs.program import Program, parse
from lab.programs.spec import Spec

TEXT = '''\
"""{words}"""

from lab.programs import {module} as made


def build():
    return made.program("""{spec}""")
'''


def write(folder: Path, spec: Spec | Program) -> Path:
    """Write the file of a spec or a program into a folder; `build` in it is what `check` takes.

    A rank that reads the file while another worker writes it anew finds all of it.
    """
    file = folder / f"{spec.digest}.py"
    module = "build" if isinstance(spec, Spec) else "target"
    text = TEXT.format(words=spec.words, module=module, spec=spec.to_json())
    written = file.with_suffix(f".{threading.get_ident()}")
    written.write_text(text)
    written.replace(file)
    return file


def program(text: str) -> Any:
    """A program as JSON, as a rank trains it: in a plain loop, or in a trainer of transformers or TRL."""
    from faultline.ranks.own_model import target
    from lab.programs import loop

    return target.Built(partial(loop.scenario, text), partial(_trainer, text))


def _trainer(text: str, arguments: dict[str, object], setup: Setup, world_size: int) -> Any:
    from lab.programs import in_trainer, in_trl

    made = in_trl.trainer if parse(text).in_trl else in_trainer.trainer
    return made(text, arguments, setup, world_size)
