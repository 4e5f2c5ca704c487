"""The section of docs/models.md on transformers' own parallelism, from the record."""

import re
from collections.abc import Mapping, Sequence

from faultline.base.markdown import headed, row
from faultline.base.text import count, cut
from faultline.catalogue.outcomes import Outcome
from faultline.report.run import ABSENT, SYMBOLS
from lab.proofs.models_record import ACCUMULATING, Difference, Summary

LONGEST = 150  # characters of what is wrong
# What is said of one model only, so that models with the same problem stand in one line.
OWN_WORDS = (
    (r"(?<=no batch could be made) for .*", ""),
    (r"the config leaves out what \w+ needs.*", "the config leaves out what its class needs"),
    (r"(?:\w+\.)+(\w+\.\w+) differs by .*", r"\1 differs"),
    (r"every gradient is [\d.]+ times what it should be; ", ""),
    (r"(?:gradient|update) of [qk]_norm.weight differs", "gradients of q_norm and k_norm differ"),
    (r"(still running after \d+ s);.*", r"\1"),
    (r"(update of .* differs); never moved: .*", r"\1"),
    (r"rope_parameters\[.*", "the default of rope_parameters doesn't fit its heads"),
)


def section(rows: Sequence[Summary]) -> list[str]:
    """What was measured under strategies of the native family; nothing if nothing was."""
    if not rows:
        return []
    strategies = [*dict.fromkeys(key.partition("/")[0] for each in rows for key in each.outcomes)]
    pairs = {(each.model, name): _symbols(each, name) for each in rows for name in strategies}
    shown = {pair: symbols for pair, symbols in pairs.items() if symbols}
    causes = _by_cause([each for each in rows if not _trains(each)], strategies)
    refused = {each.model for each in rows if each.refused}
    ran = {pair: symbols for pair, symbols in shown.items() if pair[0] not in refused}
    raising = sum(SYMBOLS[Outcome.RAISES] in symbols for symbols in ran.values())
    differing = sum(SYMBOLS[Outcome.DIVERGES] in symbols for symbols in ran.values())
    reasons = count(len({_cause(each.refused) for each in rows if each.refused}), "reason")
    kinds = {_of(difference) for each in rows for difference in each.differences}
    trains = ", ".join(f"`{each.model}`" for each in rows if _trains(each))
    funnel = (
        f"transformers {rows[-1].transformers} has plans for {count(len(shown), 'pair')} of a model type and a strategy"
        f" ({', '.join(strategies)}): {len(shown) - len(ran)} refused in one process, for {reasons}, and {len(ran)} run"
        f". Of those, {raising} raise, and {differing} train otherwise than one process without an error:"
        f" {count(len(kinds), 'kind')} of problem. A cell has a symbol for one micro-batch a step, then one for two."
    )
    lines = [row(", ".join(names), *symbols, cause) for (symbols, cause), names in causes.items()]
    return [
        "## Under transformers' own parallelism",
        funnel,
        f"{SYMBOLS[Outcome.TRAINS]} in every cell: {trains}.",
        "\n".join(headed(("model", *strategies, "what"), lines)),
    ]


def _symbols(each: Summary, strategy: str) -> str:
    """A symbol for one micro-batch a step, then one for two, in each checkpointing mode."""
    places = dict.fromkeys(
        place.removesuffix(ACCUMULATING) for place in each.outcomes if place.startswith(f"{strategy}/")
    )
    ends = [each.outcomes.get(f"{place}{how}") for how in ("", ACCUMULATING) for place in places]
    return "".join(SYMBOLS[end] if end else ABSENT for end in ends)


def _trains(each: Summary) -> bool:
    return {*each.outcomes.values()} == {Outcome.TRAINS}


def _by_cause(rows: Sequence[Summary], strategies: Sequence[str]) -> Mapping[tuple[tuple[str, ...], str], list[str]]:
    """The models that show a problem in the same cells."""
    causes: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for each in rows:
        symbols = tuple(_symbols(each, name) for name in strategies)
        texts = [_of(difference) for difference in each.differences] or [_cause(each.refused or each.impossible)]
        causes.setdefault((symbols, "; ".join(dict.fromkeys(texts))), []).append(f"`{each.model}`")
    return dict(sorted(causes.items(), key=lambda item: (item[0][0], item[0][1])))


def _of(difference: Difference) -> str:
    if difference.failure:
        return f"[{difference.failure}](../repros/{difference.failure}/README.md)"
    return _cause(difference.text)


def _cause(text: str) -> str:
    for pattern, words in OWN_WORDS:
        text = re.sub(pattern, words, text)
    text = cut(" ".join(text.split("; give ")[0].split()), LONGEST)
    return re.sub(r"([\\`*_|<])", r"\\\1", text)
