"""One rank of a cell under another launcher: ``torchrun --nproc_per_node 2 -m faultline.ranks.launched JOB``."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path


def main() -> None:
    """Run the job in the file that the first argument names and write this rank's report beside it."""
    from faultline import strategies
    from faultline.ranks import preload
    from faultline.ranks.job import Job

    file = Path(sys.argv[1])
    job = Job.read(json.loads(file.read_text()))
    os.environ.update(preload.environment(job.cell.device))
    if strategies.package(job.cell.strategy) == "deepspeed" or "ACCELERATE_USE_DEEPSPEED" in os.environ:
        preload.compile_nothing()
    from faultline.ranks import main as ranks_main

    number = int(os.environ["RANK"])
    report = ranks_main.main(job, number)
    (file.parent / f"report{number}.json").write_text(json.dumps(asdict(report)))
    os._exit(0)  # gloo's destructor can hang while a peer closes


if __name__ == "__main__":
    main()
