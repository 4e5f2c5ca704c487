"""The prose of a failure's README."""

import re

from faultline.base.paths import REPROS
from faultline.catalogue import Failure


def paragraph(failure: Failure, heading: str) -> str:
    """The paragraph of a failure's README that begins with that heading, in bold; without it, and with links as text
    where they lead to other files of this repository. Empty where there is none."""
    text = (REPROS / failure.name / "README.md").read_text(encoding="utf-8")
    match = re.search(rf"^\*\*{re.escape(heading)}\.\*\* (.*?)(?:\n\n|\Z)", text, re.S | re.M)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", match[1]).strip() if match else ""
