"""What one file of a project states: its settings, and the versions that it asks for."""

from collections.abc import Sequence
from dataclasses import dataclass

from faultline.audit import arguments, python_calls, shell
from faultline.audit.engines import Statement
from faultline.base.errors import NotRecognised
from faultline.projects import files, versions
from faultline.projects.files import Candidate
from faultline.projects.versions import Pin


@dataclass(frozen=True)
class Content:
    """What a file states, or one of the trainings in it: the kind of its settings and what they say, if it has any, and
    versions. Of one kind, each may be what runs."""

    kind: str = ""
    statements: Sequence[Statement] = ()
    pins: Sequence[Pin] = ()


def read(candidate: Candidate) -> list[Content]:
    """What a file states; raises NotRecognised for one that states nothing, and UsageError for one that can't be read.

    A script has as many trainings as it has commands, and code as many as it makes arguments.
    """
    path, name = candidate.path, candidate.name
    if files.is_environment(path):
        return [Content(pins=versions.environment(path, name))]
    document = files.read(path, name)
    if files.is_code(name):
        contents = [Content("code", each) for each in python_calls.read(document)]
    elif files.is_script(name, document.text):
        contents = [Content("command", each) for each in shell.read(document)]
    else:
        settings, pins = arguments.read(document), versions.read(document)
        known = settings is not None or pins is not None
        contents = [Content(*(settings or ("", [])), pins or [])] if known else []
    if not contents:
        raise NotRecognised(
            f"{name} is not recognised: give requirements or a lock file, an accelerate or DeepSpeed config, training "
            "arguments in YAML or JSON, or a script or Python file that sets them"
        )
    return contents
