"""Every word that can be explained: those of the pages, and what the catalogue and the strategies name."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from faultline import strategies
from faultline.base.paths import ROOT
from faultline.base.text import cut, one_line
from faultline.catalogue import Failure, stories
from faultline.catalogue.loading import failures
from faultline.cells import expected
from faultline.explain import pages
from faultline.explain.pages import Word
from faultline.observations import matching, store

STRATEGIES, SIGNATURES, FAILURES = "Strategies", pages.KINDS["signature"], "Failures"
LONGEST = 300  # characters of an error


def vocabulary() -> dict[str, list[Word]]:
    """Every word by its name; one that is of several kinds has an entry for each."""
    known: dict[str, list[Word]] = {}
    for word in (*pages.words(), *_strategies(), *_signatures(), *map(_failure, failures().values())):
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


def _failure(failure: Failure) -> Word:
    cause = stories.plain(stories.sections(failure).get("Cause", ""))
    return Word(failure.name, FAILURES, failure.title, (("cause", cause),), f"faultline show {failure.name}")
