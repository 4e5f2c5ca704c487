"""Every word that can be explained: those that pages of docs/ define, and what the catalogue and strategies name."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from faultline import strategies
from faultline.base.paths import ROOT
from faultline.base.text import cut, one_line
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.stories import plain
from faultline.cells import expected
from faultline.observations import matching, store

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
    "compile": "Backends of torch.compile",
}
TERMS = "Terms"  # the headings of the glossary
MEANING = ("meaning", "when")
STRATEGIES, SIGNATURES = "Strategies", KINDS["signature"]
LONGEST = 300  # characters of an error


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


def vocabulary() -> dict[str, list[Word]]:
    """Every word by its name; one that is of several kinds has an entry for each."""
    known: dict[str, list[Word]] = {}
    for word in (*words(), *_strategies(), *_signatures()):
        same = known.setdefault(word.name, [])
        before = next((each for each in same if each.kind == word.kind), None)
        if before:  # a later page has more of it, and the earlier one its example
            facts, command = before.facts + word.facts, word.command or before.command
            text = word.text or before.text
            same[same.index(before)] = replace(before, text=text, facts=facts, command=command)
        else:
            same.append(word)
    return known


def _strategies() -> Iterator[Word]:
    for name in strategies.names():
        text = one_line((strategies.family(name).code.__doc__ or "").partition("\n\n")[0])
        options = strategies.options(name)
        settings = asdict(options) if options else {}
        facts = tuple((option.replace("_", " "), _value(value)) for option, value in settings.items())
        yield Word(
            name, STRATEGIES, text, (*facts, ("engine", strategies.package(name))), f"faultline run --strategy {name}"
        )


def _value(value: object) -> str:
    if isinstance(value, Path):
        return str(value.relative_to(ROOT))
    return value if isinstance(value, str) else json.dumps(value)


def _signatures() -> Iterator[Word]:
    """The errors that failures name, and the failures whose cells end with a signature."""
    having: dict[str, dict[str, Failure]] = {}
    for failure in failures().values():
        rules = [name for rule in expected.rules(failure) for name in rule.signature]
        for name in (*failure.errors, *failure.also_raises, *rules):
            having.setdefault(name, {})[failure.name] = failure
    texts = {error.signature: error.text for error in reversed([*store.errors().values()])}
    for name, among in having.items():
        named = any(name in each.errors for each in among.values())
        why = next(filter(None, (matching.mechanism(each, name) for each in among.values())), None)
        of = [each for each in among.values() if name not in each.also_raises]
        others = [each.name for each in among.values() if name in each.also_raises]
        facts = [("why", why.text)] if why else []
        facts += [(each.name, each.title) for each in of]
        facts += [("also seen in", ", ".join(others))] if others else []
        text = cut(texts.get(name, "an error that no recorded run ended with"), LONGEST) if named else ""
        yield Word(name, SIGNATURES, text, tuple(facts), f"faultline show {next(iter(of or among.values())).name}")
