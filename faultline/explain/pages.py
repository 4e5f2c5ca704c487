"""The words that pages of docs/ define: a heading of the glossary, or a row of a table."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from faultline.base.paths import ROOT
from faultline.catalogue.stories import plain

DOCS = ROOT / "docs"  # of which pyproject.toml puts PAGES into the wheel
PAGES = ("glossary", "outcomes", "diagnose", "releases")
# What the first column of a table is called whose rows are words, and how these are headed in a list.
KINDS = {
    "outcome": "Outcomes",
    "signature": "Signatures",
    "verdict": "Verdicts",
    "verdict of a cell": "Verdicts",
    "answer": "Answers of diagnose",
    "kind": "Kinds of change",
    "mode": "Checkpointing modes",
    "precision": "Precisions",
    "device": "Devices",
    "life": "Lives",
}
TERMS = "Terms"  # the headings of the glossary
MEANING = ("meaning", "when")


@dataclass(frozen=True)
class Word:
    """A word, the kind of words that it belongs to, and what is said of it.

    `facts` go with it, each a name and a text, and `command` is the one to go on with.
    """

    name: str
    kind: str
    text: str
    facts: tuple[tuple[str, str], ...] = ()
    command: str = ""


def words() -> Iterator[Word]:
    """Every word that a page defines, in the order of the pages."""
    for page in PAGES:
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        for heading, section in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", text, re.M):
            blocks = section.strip().split("\n\n")
            rows = [word for block in blocks for word in _rows(block)]
            if page == "glossary":
                prose = " ".join(block for block in blocks if not block.startswith("|"))
                yield Word(heading, TERMS, plain(prose), tuple((word.name, word.text) for word in rows))
            yield from rows


def _rows(block: str) -> Iterator[Word]:
    """The words of a table; none of a block that is no table of words."""
    if not block.startswith("|"):
        return
    head, _, *rows = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines())
    if head[0] not in KINDS:
        return
    for names, *cells in rows:
        texts = dict(zip(head[1:], map(plain, cells), strict=True))
        meaning = next(texts.pop(name) for name in MEANING if name in texts)
        for name in names.split(", "):
            yield Word(name.strip("`"), KINDS[head[0]], meaning, tuple(texts.items()))
