"""What a bisect found, in lines for a terminal."""

from collections import Counter
from collections.abc import Iterator

from faultline.base.text import count, cut
from faultline.catalogue.outcomes import outcome_text
from faultline.releases.bisect_record import WIDTH, Blame, Changes, Record, Side

OTHERS = {
    "dated": "the rest of the stack as of each release's date",
    "fixed": "the rest of the stack as installed, as far as it fits",
}


def lines(record: Record) -> Iterator[str]:
    """A record in words."""
    before, after = record.before, record.after
    yield from record.cells
    yield ""
    yield verdict(record)
    for each in filter(None, (before, after)):
        yield from _side(record, each)
    if before and after:
        yield confidence(before, after)
    releases = f"{len(record.releases)} releases from {record.releases[0].version} to {record.releases[-1].version}"
    yield f"{count(record.environments, 'environment')} for {releases}; {OTHERS[record.others]}"
    yield from (f"  skipped {each.version}: {each.why}" for each in record.skipped)
    if record.between:
        yield "another cell of this failure may give an answer: choose it with --variant, --strategy or --checkpointing"
    if record.changed:
        number = count(len(record.changed), "package")
        yield f"besides {record.package}, {number} changed between the two: {_pairs(record.changed)}"
    if record.blame:
        yield from _blame(record.blame)
    elif record.changed:
        yield "  --resume --blame finds which of them matter"


def verdict(record: Record) -> str:
    """The answer in a sentence."""
    package, before, after, between = record.package, record.before, record.after, record.between
    if before and after and not between:
        return f"{record.direction} by {package} {after}: {before} {before.answer}"
    if before and after:
        return (
            f"{record.direction} after {package} {before} and no later than {after};"
            f" {count(len(between), 'release')} between them give no answer"
        )
    one = before or after
    if one is None:
        return f"undecided: no release of {package} in the range gives an answer"
    if between:
        return f"undecided: {package} {one} {one.answer}, and {'older' if after else 'newer'} releases give no answer"
    end, as_newest = ("oldest", " as the newest") if after else ("newest", "")
    hint = "; name one that does with --to, or look for the fix with --fixed"
    answer = f"no change: {package} {one}, the {end} in the range, {one.answer}{as_newest}"
    return answer + (hint if before and record.direction == "introduced" else "")


def confidence(before: Side, after: Side) -> str:
    """How sure the pair is, in words with counts."""
    if before.agree == before.runs == after.agree == after.runs:
        return f"confidence: {before.runs} of {before.runs} runs on both sides"
    counts = " and ".join(f"{each.agree} of {each.runs} runs on {each.version}" for each in (before, after))
    return f"confidence: {counts}; the others did something else, so the change is likely, not certain"


def _side(record: Record, each: Side) -> Iterator[str]:
    yield f"  {record.package} {each}, {each.agree} of {count(each.runs, 'run')}"
    texts = Counter(
        f"{outcome_text(did.outcome, did.signature)}: {cut(did.detail, WIDTH)}".removesuffix(": ")
        for did in each.outcomes.values()
    )
    for text, cells in texts.items():
        yield f"    {text}" + (f" in {cells} of {len(record.cells)} cells" if len(texts) > 1 else "")
    if each.had_to_change:
        yield f"    had to change from what is installed: {_pairs(each.had_to_change)}"
    yield f"    {each.repeat}"


def _pairs(changed: Changes) -> str:
    return ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changed.items())


def _blame(blame: Blame) -> Iterator[str]:
    enough = f"the change of {', '.join(blame.packages)} is enough, the rest as in the older stack"
    doubt = "" if blame.minimal else "; a smaller set may be enough too, for not every one could be tried"
    yield f"{enough}{doubt} ({count(len(blame.trials), 'trial')})"
    for trial in blame.trials:
        word = {True: "changes", False: "changes nothing", None: "no answer"}[trial.changes]
        yield f"  {', '.join(trial.packages)}: {word}: {trial.why}"
