"""python -m faultline, what bin/faultline runs by its path, and what an installed package calls."""

import signal
import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# A Ctrl-C while modules are imported ends this without a traceback.
usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if usual:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from faultline.cli.app import main  # noqa: E402

if usual:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if __name__ == "__main__":
    raise SystemExit(main())
