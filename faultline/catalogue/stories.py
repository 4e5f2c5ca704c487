"""The prose of a failure's README."""

import re
from collections.abc import Mapping

from faultline.base.markdown import BEGIN, END
from faultline.base.paths import REPROS
from faultline.catalogue import Failure


def paragraph(failure: Failure, heading: str) -> str:
    """The paragraph of a failure's README that begins with that heading, in bold; without it, and with links as text
    where they lead to other files of this repository. Empty where there is none."""
    text = (REPROS / failure.name / "README.md").read_text(encoding="utf-8")
    match = re.search(rf"^\*\*{re.escape(heading)}\.\*\* (.*?)(?:\n\n|\Z)", text, re.S | re.M)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", match[1]).strip() if match else ""


def sections(failure: Failure) -> dict[str, str]:
    """The prose of a failure's README: what comes before the first heading under an empty name, then each heading's
    paragraphs, without what was measured."""
    text = (REPROS / failure.name / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    blocks = (before + rest.partition(END)[2]).strip().split("\n\n")[1:]
    parts: dict[str, list[str]] = {"": []}
    for block in blocks:
        heading = re.match(r"\*\*([A-Z][\w' ]*)\.\*\* ", block)
        if heading:
            parts[heading[1]] = [block[heading.end() :]]
        else:
            parts[[*parts][-1]].append(block)
    return {name: "\n\n".join(texts) for name, texts in parts.items()}


def symptom_and_error(story: Mapping[str, str]) -> tuple[str, str]:
    """The symptom and the error of a failure: a story's first paragraph, and the error as it is on record, indented.

    Empty where a story has none.
    """
    return story.get("", ""), split(story.get("Record", ""))[1]


def split(text: str) -> tuple[str, str]:
    """The prose of a text, and its indented blocks."""
    blocks = text.split("\n\n")
    code = [block for block in blocks if block.startswith("    ")]
    return "\n\n".join(block for block in blocks if block not in code), "\n\n".join(code)


def plain(text: str) -> str:
    """Prose in one line, with each link as its text."""
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).split())
