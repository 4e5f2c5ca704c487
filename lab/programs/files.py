"""A spec or a program as a file of its own, which `check` trains like anybody's, with the fault seeded into it."""

import threading
from pathlib import Path

from lab.programs.fault import Fault
from lab.programs.program import Program
from lab.programs.spec import Spec

TEXT = '''\
"""{words}"""

from lab.programs import {module} as made


def build():
    return made.program("""{spec}""")
'''
FAULT = '''

# {words}
from lab.programs import inject  # noqa: E402

FAULT = inject.injection("""{fault}""")
'''


def write(folder: Path, spec: Spec | Program, fault: Fault | None = None) -> Path:
    """Write the file of a spec or a program into a folder.

    `build` in it is what `check` takes, and `FAULT` the Injection of a fault. A rank that reads the file while another
    worker writes it anew finds all of it.
    """
    file = folder / f"{spec.digest}{f'-{fault.kind}' if fault else ''}.py"
    module = "build" if isinstance(spec, Spec) else "ways"
    text = TEXT.format(words=spec.words, module=module, spec=spec.to_json())
    if fault:
        text += FAULT.format(words=fault.words, fault=fault.to_json())
    partial = file.with_suffix(f".{threading.get_ident()}")
    partial.write_text(text)
    partial.replace(file)
    return file
