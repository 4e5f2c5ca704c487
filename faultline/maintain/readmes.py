"""What failures' READMEs and other pages have of runs, of the catalogue and of its strategies, rewritten from them."""

import re
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.errors import UsageError
from faultline.base.markdown import as_code, headed, put, row
from faultline.base.packages import TODAY, stack_name
from faultline.base.paths import OBSERVATIONS, ROOT
from faultline.base.text import one_line
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.cells.cell import MARGIN, TOLERANCE, Cell, default_world
from faultline.cells.claims import Outcomes
from faultline.cells.words import group_strategies, in_order, places
from faultline.diagnose import prose
from faultline.maintain import on_gpus
from faultline.observations import measured, remedies, symptoms
from faultline.observations.measured import shown_on, usual
from faultline.observations.remedies import Judged
from faultline.releases import recorded
from faultline.report import claims
from faultline.runs.results import Result, outcomes

_DEVICES = {"cpu": "the CPU with gloo", "cuda": "a GPU"}


def noise(results: Collection[Result]) -> str:
    """How far healthy cells are from the reference, and sick ones, as Markdown: what the tolerances rest on."""
    rows = []
    for precision, tolerance in TOLERANCE.items():
        compared = [r for r in results if r.cell.precision == precision and r.relative_error is not None]
        trained = [r for r in compared if r.outcome == "trains"]
        healthy = sorted(float(r.relative_error or 0) for r in trained)
        # Ranks may differ in buffers alone.
        sick = [float(r.relative_error or 0) for r in compared if r.outcome == "diverges" and r.signature == "differs"]
        largest = [float(r.rounding.largest.error) for r in trained if r.rounding.largest]
        times = [float(r.rounding.times_noise or 0) for r in trained if r.rounding.count]
        if healthy:
            columns = {
                "precision": precision,
                "cells that train": str(len(healthy)),
                "median of their largest error": f"{healthy[len(healthy) // 2]:.1e}",
                "largest": f"{healthy[-1]:.1e}",
                "tolerance": f"{tolerance:g}",
                "least of those that diverge": f"{min(sick):.1g}" if sick else "none",
                "errors that rounding excuses": str(sum(r.rounding.count for r in trained)),
                "largest of them": f"{max(largest):.1g}" if largest else "none",
                "most times the noise": f"{max(times):.1f}" if times else "none",
                "margin": f"{MARGIN[precision]:g}",
            }
            rows.append(columns)
    return "\n".join(headed(rows[0] if rows else (), [row(*each.values()) for each in rows]))


def measured_part(failure: Failure, results: Iterable[Result]) -> str:
    """The Markdown of one failure, the same for the same results in whatever order.

    Of a run on several devices it shows the CPU's part.
    """
    known = {variant.name for variant in failure.variants}
    results = [r for r in results if r.cell.failure == failure.name and r.cell.variant in known]
    if not results:
        raise UsageError(f"the run has no cell of {failure.name}")
    device = min(result.cell.device for result in results)
    results = sorted((r for r in results if r.cell.device == device), key=lambda result: result.cell.id)
    observed = outcomes(results)
    main = _usual_only(observed)
    stacks = sorted({one_line(stack_name(result.stack)) for result in results if result.stack})
    resumed = ", saved after two steps and resumed by fresh ranks for two more" if failure.resumed else ""
    parts = [
        f"First seen in: {failure.first_seen}." if failure.first_seen else "",
        f"Measured with {'; '.join(stacks) or 'an unknown stack'}, on {_DEVICES.get(device, device)},"
        f" in fp32 on 2 ranks (`single`: one process){resumed}.",
        "\n".join(happens(failure, main)),
        elsewhere(observed, main),
        *on_the_stack_that_shows(failure),
        "\n".join(fates(failure, results)),
        "\n".join(second_models(results)),
    ]
    return "\n\n".join(filter(None, parts))


def on_the_stack_that_shows(failure: Failure) -> list[str]:
    """What cells did on the stack on which a failure was reported, where today's shows none of it."""
    name = shown_on(failure)
    if name == TODAY:
        return []
    observed = measured.outcomes(failure, name)
    main = _usual_only(observed)
    return [
        f"On [{name}](../../stacks/{name}.txt), which shows it:",
        "\n".join(happens(failure, main)),
        elsewhere(observed, main),
    ]


def happens(failure: Failure, main: Outcomes) -> list[str]:
    """The table of broken variants: strategies that do the same in every mode share their lines.

    `any` are all modes that there are: of a variant that runs in some of them only, those are named.
    """
    lines = []
    for variant in (v.name for v in failure.variants if v.broken):
        did: dict[str, dict[str, str]] = {}
        for cell in main:
            if cell.variant == variant:
                did.setdefault(cell.strategy, {})[cell.checkpointing] = _outcome(*main[cell])
        groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for strategy in in_order(did, strategies.names()):
            same: dict[str, list[str]] = {}
            for mode in in_order(did[strategy], CHECKPOINTING):
                same.setdefault(did[strategy][mode], []).append(mode)
            endings = tuple(
                ("any" if {*modes} == {*CHECKPOINTING} else ", ".join(modes), outcome)
                for outcome, modes in same.items()
            )
            groups.setdefault(endings, []).append(strategy)
        for endings, names in groups.items():
            group = as_code(group_strategies(names, did))
            lines += [row(f"`{variant}`", group, checkpointing, outcome) for checkpointing, outcome in endings]
    return headed(("variant", "strategies", "checkpointing", "outcome"), lines)


def elsewhere(observed: Outcomes, main: Outcomes) -> str:
    """One line on bf16 and other world sizes: how broken variants differ there from the main table."""
    others = [cell for cell in observed if cell.broken and usual(cell) in main and cell not in main]
    changes: dict[tuple[str, str], list[Cell]] = {}
    for cell in sorted(others, key=lambda cell: cell.id):
        now, normal = observed[cell], main[usual(cell)]
        if now != normal:
            changes.setdefault((_place(cell), f"{_outcome(*now)} rather than {_outcome(*normal)}"), []).append(cell)
    texts = []
    for (place, change), cells in sorted(changes.items()):
        among = [usual(cell) for cell in others if _place(cell) == place]
        where = ", ".join(places([usual(cell) for cell in cells], among))
        texts.append(f"with {place}, {as_code(where)}: {change}")
    if texts:
        return f"Different outside of that table: {'; '.join(texts)}."
    run = " or ".join(sorted({_place(cell) for cell in others}))
    return f"The same outcomes with {run}, wherever broken variants were run so." if run else ""


def _usual_only(observed: Outcomes) -> Outcomes:
    """What is in the main table."""
    return {cell: did for cell, did in observed.items() if cell == usual(cell)}


def _place(cell: Cell) -> str:
    """How a cell differs from the main table's."""
    count = "1 rank" if cell.world_size == 1 else f"{cell.world_size} ranks"
    ranks = "" if cell.world_size == default_world(cell) else count
    return " on ".join(filter(None, (cell.precision if cell.precision != "fp32" else "", ranks)))


def fates(failure: Failure, results: Collection[Result]) -> list[str]:
    """The table of claims with their verdicts."""
    rows = [
        row(key, judged.verdict.claim.text, judged.verdict.word, _count(judged))
        for key, judged in claims.judge_in_run(failure, outcomes(results)).items()
    ]
    return headed(("", "claim", "verdict", "cells"), rows)


def second_models(results: Iterable[Result]) -> list[str]:
    """Where there is a model that is only read: how much of it a rank holds, and what wraps it."""
    by_variant: dict[str, dict[str, list[str]]] = {}
    for result in results:
        second = result.evidence.get("second")
        if second and result.cell == usual(result.cell) and result.cell.checkpointing == "off":
            held, whole = second["bytes_held"], second["bytes_whole"]
            share = f"{held / whole:.0%}" if whole else "placeholders only"  # a copy of what ZeRO-3 has sharded
            size = f"{held} of {whole} bytes ({share}), {second['wrapper']}"
            by_variant.setdefault(result.cell.variant, {}).setdefault(size, []).append(result.cell.strategy)
    rows = [
        row(f"`{variant}`", as_code(group_strategies(names, {*chain(*sizes.values())})), size)
        for variant, sizes in by_variant.items()
        for size, names in sizes.items()
    ]
    return headed(("variant", "strategies", "what a rank holds of the second model"), rows) if rows else []


def _count(judged: Judged) -> str:
    """How many cells support a claim, and what happens in those that don't; on which stacks, if not the run's."""
    verdict, on = judged.verdict, f", on {' and '.join(judged.stacks)}" if judged.stacks else ""
    if verdict.word == "untested":
        return f"no cell could tell{on}"
    count = f"{len(verdict.supporting)} of {len(verdict.supporting) + len(verdict.against)} cells"
    return as_code("; ".join([count, *judged.where])) + on


def _outcome(outcome: str, signature: str) -> str:
    return one_line(f"{outcome} `{signature}`" if signature else outcome)


README, DOCS = ROOT / "README.md", ROOT / "docs"
CATALOGUE, CI, MATRIX, TIMELINE = (DOCS / f"{name}.md" for name in ("catalogue", "ci", "matrix", "timeline"))
COUNTS = "<!-- counts: begin -->", "<!-- counts: end -->"
FAILURES = "<!-- failures: begin -->", "<!-- failures: end -->"
STRATEGIES = "<!-- strategies: begin -->", "<!-- strategies: end -->"
SYMPTOMS = "<!-- symptoms: begin -->", "<!-- symptoms: end -->"
GPUS = "<!-- gpus: begin -->", "<!-- gpus: end -->"
MONTHS = "<!-- months: begin -->", "<!-- months: end -->"
VERDICTS = ("verified", "refuted", "conditional", "untested")


def rewrite() -> str:
    """Rewrite the tables and the figures, and report for each file whether it changed."""
    (OBSERVATIONS / prose.WEIGHTS).write_bytes(prose.written_weights())
    pages = [(CATALOGUE, table, FAILURES), (CATALOGUE, symptoms_list, SYMPTOMS), (README, counts, COUNTS)]
    pages += [(MATRIX, families, STRATEGIES), (TIMELINE, recorded.monthly_table, MONTHS), (CI, on_gpus.table, GPUS)]
    return "\n".join([put(*page) for page in pages])


def counts() -> str:
    """The number of failures, and of claims by verdict, as a sentence."""
    words = Counter(
        remedies.recorded_verdict(failure, claim).word
        for failure in failures().values()
        for claim in failure.claims.values()
    )
    by_verdict = ", ".join(f"{words[word]} {word}" for word in VERDICTS if words[word])
    return f"{len(failures())} failures and {words.total()} claims: {by_verdict}."


def families() -> str:
    """Markdown: each family of strategies on one line, as the first line of its file has it."""
    rows = [
        row((family.code.__doc__ or "").partition("\n")[0], ", ".join(f"`{name}`" for name in family.strategies))
        for family in sorted(strategies.families().values(), key=lambda family: family.order)
    ]
    return "\n".join(headed(("family", "strategies"), rows))


def symptoms_list() -> str:
    """Markdown: what one sees without an error, and below it the failures that show it today, with their strategies."""
    lines = []
    for words, by_failure in symptoms.by_symptom().items():
        lines += [f"### {words[0].upper()}{words[1:]}", ""]
        for name, where in by_failure.items():
            places = ", ".join(f"`{word}`" for word in group_strategies(where, ()).split(", "))
            lines.append(f"- {_link(name)}: {failures()[name].title}; under {places}")
        lines.append("")
    return "\n".join(lines).strip()


def _link(name: str) -> str:
    return f"[{name}](../repros/{name}/README.md)"


def table() -> str:
    """Markdown: each failure on one line, with where it happens today, its fix and its first remedy."""
    head = ("failure", "what you see", "where today", "fixed in", "what helps first", "first seen in")
    return "\n".join(headed(head, [row(*_line(failure)) for failure in failures().values()]))


def _line(failure: Failure) -> tuple[str, ...]:
    return (
        _link(failure.name),
        failure.title,
        symptoms.happens_today(failure),
        re.split(r"[:;]|, wh(?:ich|ose)\b", failure.until)[0],
        remedies.first_remedy(failure),
        failure.first_seen,
    )
