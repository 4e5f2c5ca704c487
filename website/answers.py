"""The data that the entrance decides by, as `diagnose` does: errors, conditions, places, recorded texts."""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.traces import VICTIM
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures, symptoms
from faultline.catalogue.recognition import Condition
from faultline.diagnose import messages, prose, signs, silent
from faultline.diagnose.context import MODES
from faultline.diagnose.events import FROM_OUTSIDE, TIMEOUT
from faultline.diagnose.lines import LAYERS, PREFIX
from faultline.observations import ambiguity, matching, measured, store, wording
from faultline.observations.ambiguity import SHORTEST
from faultline.strategies.naming import Rows, mentioned, requests, traces
from faultline.strategies.naming import messages as engine_messages

FLAGS = re.compile(r"\A\(\?([ims]+)\)")


def data() -> dict[str, object]:
    """All that diagnose.js, silent.js and words.js in theme/ read, which repeat `diagnosis.diagnose` for one text."""
    return {
        "errors": [_error(f, name) for f in failures().values() for name in _judged(f)],
        "recorded": [
            [
                error.failure,
                error.signature,
                ambiguity.numberless(error.text),
                for_browser(ambiguity.type_alone(error) or "(?!)"),
            ]
            for error in store.errors().values()
            if error.failure in failures() and _distinguished(failures()[error.failure], error.signature)
        ],
        "beginnings": [(for_browser(pattern, "i"), kind) for pattern, kind in messages.beginnings().items()],
        "strategies": strategies.names(),
        "checkpointing": CHECKPOINTING,
        "ran": _rows(traces()),
        "printed": _rows(engine_messages()),
        "asked": _rows(requests()),
        "modes": _rows(MODES),
        "searched": {
            "most": measured.BEGINNING,
            "split": for_browser(wording.SPLIT.pattern, "g"),
            "several": for_browser(wording.SEVERAL.pattern),
            "signs": wording.SIGNS,
            "stretches": wording.STRETCHES,
        },
        "signs": {
            "tried": for_browser(signs.TRIED.pattern, "g"),
            "label": for_browser(signs.LABEL.pattern, "g"),
            "victim": for_browser(VICTIM.pattern),
            "watchdog": for_browser(signs.WATCHDOG.pattern),
            "raised_in": for_browser(signs.RAISED_IN.pattern, "m"),
            "outside": FROM_OUTSIDE,
            "timeout": TIMEOUT,
            "most": ambiguity.MOST,
            "shortest": SHORTEST,
        },
        "silent": _silent(),
        "words": _words(),
    }


def _words() -> dict[str, object]:
    """The data of theme/words.js: terms, and what a report of each failure has."""
    return {
        "terms": [
            (name, for_browser(pattern.pattern, "" if pattern.flags & re.IGNORECASE == 0 else "i"))
            for name, pattern in prose.vocabulary()
        ],
        "failures": [
            {
                "failure": name,
                "together": known.together,
                "anywhere": known.anywhere,
                "symptoms": [{"text": each.text, "weights": prose.weights()[each.text]} for each in known.symptom],
                "places": sorted("/".join(place) for place in prose.places_of(name)),
                "only_with": prose.only_with(failure),
            }
            for name, failure in failures().items()
            if (known := symptoms(name)).symptom
        ],
        "patterns": {
            "sentence": for_browser(prose.SENTENCE.pattern),
            "code": for_browser(prose.CODE.pattern, "gm"),
            "printed": for_browser(prose.PRINTED.pattern),
            "beside_han": for_browser(prose.BESIDE_HAN.pattern, "g"),
            "word": for_browser(prose.WORD.pattern, "g"),
            "camel": for_browser(f"^(?:{prose.CAMEL.pattern})$"),
        },
        "engines": sorted(prose.ENGINES),
        "limits": {
            name.lower(): getattr(prose, name)
            for name in (
                *("MOST", "LINES", "LONGEST", "SENTENCES", "LONGEST_NAME", "AT_ONCE"),
                *("MORE", "ENOUGH", "CLOSE", "BESIDE_BEST", "APART"),
            )
        },
    }


def _silent() -> dict[str, object]:
    """The data of theme/silent.js: what steps and warnings look like, and where failures are silent, by signature,
    today and on any stack."""
    signatures = dict.fromkeys((*silent.WRONGLY, "unmoved", "nan"))

    def places(
        there: Callable[[Failure, Collection[str]], set[measured.Place]], failure: Failure
    ) -> dict[str, list[str]]:
        by = {each: sorted("/".join(place) for place in there(failure, [each])) for each in signatures}
        return {each: found for each, found in by.items() if found}

    return {
        "norm": for_browser(silent.NORM.pattern, "i"),
        "loss": for_browser(silent.LOSS.pattern, "i"),
        "alike": for_browser(silent.ALIKE.pattern),
        "counted": for_browser(rf"\A(?:{silent.COUNTED.pattern})", "i"),
        "spaced": for_browser(silent.SPACED.pattern, "i"),
        "skips": silent.SKIPS,
        "prefix": for_browser(PREFIX.pattern, "i"),
        "layers": LAYERS,
        "longest": silent.LONGEST,
        "fewest": silent.FEWEST,
        "enough": silent.ENOUGH,
        "traceback": signs.TRACEBACK,
        "wrongly": silent.WRONGLY,
        "warnings": [(name, for_browser(each.pattern), words) for name, each, words in silent.warnings()],
        "places": {
            name: {"today": places(measured.silent_today, each), "ever": places(measured.silent, each)}
            for name, each in failures().items()
            if measured.silent(each, [*signatures])
        },
    }


def for_browser(pattern: str, flags: str = "") -> list[str]:
    """A pattern of Python as a browser takes it: its source and its flags."""
    inline = FLAGS.match(pattern)
    source = FLAGS.sub("", pattern).replace("(?P<", "(?<").replace(r"\A", r"(?<![\s\S])").replace(r"\Z", r"(?![\s\S])")
    return [source, "".join(sorted({*flags, *(inline[1] if inline else "")}))]


def _judged(failure: Failure) -> list[str]:
    """The errors by which a failure may be named: its own, in their order, then others that recorded runs had."""
    recorded = {e.signature for e in store.errors().values() if e.failure == failure.name}
    others = [name for name in sorted(recorded) if _distinguished(failure, name)]
    return list(dict.fromkeys((*_documented(failure), *others)))


def _documented(failure: Failure) -> list[str]:
    return [name for name in failure.errors if name not in failure.also_raises]


def _distinguished(failure: Failure, signature: str) -> bool:
    return bool(failure.recognition.of(signature).distinguished_by)


def _error(failure: Failure, name: str) -> dict[str, object]:
    """One error of a failure, and all that `matching.judge` and `ambiguity.likeliest` ask of it."""
    error = failure.recognition.of(name)
    mechanism = matching.mechanism(failure, name)
    finding = error.raised_on_load
    match = matching.Match(failure, finding or name)
    places = [] if finding else sorted(measured.places(failure, name))
    kinds = [ambiguity.kind(each) for each in store.errors().values() if _of(each, failure, name)]
    return {
        "failure": failure.name,
        "name": name,
        "documented": name in _documented(failure),
        "pattern": for_browser(failure.errors.get(name, "(?!)"), "i"),
        "type": kinds[-1] if kinds else "",
        "any_of": _conditions(error.any_of),
        "may_be": _conditions(error.may_be),
        "mechanism": {"text": mechanism.text, "any_of": _conditions(mechanism.any_of)} if mechanism else None,
        "on_load": bool(finding),
        "by_itself": measured.shown_by_itself(failure, finding or name),
        "places": ["/".join(place) for place in places],
        "modes": [] if finding else sorted(measured.modes(failure, name)),
        "mentions": [] if finding else sorted(mentioned(match.distinguished_by)),
        "runs": ambiguity.runs(match),
        "runs_at": {"/".join(at): ambiguity.runs(replace(match, where=frozenset([at]))) for at in places},
        "terms": [for_browser(term) for term in failure.recognition.of(finding or name).terms],
        "fits": _conditions(failure.recognition.of(finding or name).any_of),
        "if": match.distinguished_by or failure.title,
    }


def _of(error: store.RecordedError, failure: Failure, name: str) -> bool:
    return (error.failure, error.signature) == (failure.name, name)


def _conditions(any_of: Iterable[Condition]) -> list[dict[str, object]]:
    return [
        {
            "present": [for_browser(pattern) for pattern in each.present],
            "absent": [for_browser(pattern) for pattern in each.absent],
            "only_if": each.only_if,
        }
        for each in any_of
    ]


def _rows(rows: Rows) -> list[tuple[list[str], tuple[str, ...]]]:
    return [(for_browser(pattern.pattern), names) for pattern, names in rows]
