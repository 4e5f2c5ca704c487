"""One rank of a cell under another launcher, such as ``torchrun --nproc_per_node 2 -m faultline.launched JOB``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Run the job in the file that the first argument names and write this rank's report beside it."""
    from faultline import preload, server
    from faultline.matrix import Cell

    file = Path(sys.argv[1])
    job = json.loads(file.read_text())
    os.environ.update(server.environment(Cell.parse(job["cell"]).device))
    if "/zero" in job["cell"] or "ACCELERATE_USE_DEEPSPEED" in os.environ:
        preload.compile_nothing()
    from faultline import rank

    number = int(os.environ["RANK"])
    report = rank.main(job, number)
    (file.parent / f"report{number}.json").write_text(json.dumps(report))
    os._exit(0)  # gloo's destructor can hang while a peer closes


if __name__ == "__main__":
    main()
