"""A spec or a program as a file of its own, which `check` trains like anybody's."""

import threading
from pathlib import Path

from lab.programs.program import Program
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
    module = "build" if isinstance(spec, Spec) else "ways"
    text = TEXT.format(words=spec.words, module=module, spec=spec.to_json())
    partial = file.with_suffix(f".{threading.get_ident()}")
    partial.write_text(text)
    partial.replace(file)
    return file
