"""python -m faultline, and what bin/faultline runs by its path."""

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from faultline.cli.app import main

if __name__ == "__main__":
    raise SystemExit(main())
