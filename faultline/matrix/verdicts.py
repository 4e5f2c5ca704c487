"""The verdicts on a failure's claims: from the newest run that has its cells, else from the committed record."""

from __future__ import annotations

import time

from faultline.base.packages import stack_name
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.cells.claims import Verdict
from faultline.cells.selection import Selection, select
from faultline.observations import measured
from faultline.observations.verdicts import by_rules
from faultline.report import claims
from faultline.runs import folders


def newest(failure: Failure) -> tuple[dict[str, Verdict], str]:
    """The verdict on each claim, and the sentences that say where the verdicts come from."""
    committed = {key: by_rules(failure, claim) for key, claim in failure.claims.items()}
    record = f"the committed record, measured with {stack_name(measured.pinned())}"
    cells = select(failures(), Selection(failure=(failure.name,)))
    folder, results = folders.newest_with(cells)
    if not folder:
        return committed, f"Verdicts from {record}. `make test-matrix FAILURE={failure.name}` measures them here."
    in_run = {key: judged.verdict for key, judged in claims.in_run(failure, results).items()}
    tested = {key: verdict for key, verdict in in_run.items() if verdict.word != "untested"}
    count = sum(entry.cell.failure == failure.name for entry in results)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(folder.cells.stat().st_mtime))
    source = f"Verdicts from {folder.shown} of {when}: {count} of the {len(cells)} cells of this failure."
    if untested := len(committed) - len(tested):
        source += f" {untested} of {len(committed)} claims were not tested there: their verdicts are from {record}."
    return committed | tested, source
