"""Cases of which some run by day, so that `make test` ends soon; `make test-nightly` runs the others."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

import pytest


def sampled(cases: Iterable[object], every: int, kind: Callable[..., Hashable] = lambda *values: None) -> list[object]:
    """The cases as parameters, of which the first of each kind and one of so many others run by day."""
    given, seen = [], Counter[Hashable]()
    for number, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        by_day = not seen[kind(*values)] or not number % every
        seen[kind(*values)] += 1
        given.append(pytest.param(*values, marks=[] if by_day else [pytest.mark.nightly]))
    return given
