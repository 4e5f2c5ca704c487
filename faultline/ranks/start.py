"""Starts a rank server in any interpreter: `faultline` comes from here, and nothing else of this environment."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

IN_RANKS = "FAULTLINE_RANKS"  # the variable that a rank server and all that it starts have


def main() -> None:
    """Become a rank server, with the catalogue's folder first among those where modules are looked for."""
    spec = spec_from_file_location("faultline", Path(__file__).resolve().parents[1] / "__init__.py")
    assert spec and spec.loader
    package = sys.modules["faultline"] = module_from_spec(spec)
    spec.loader.exec_module(package)

    from faultline.base.paths import ROOT

    sys.path.insert(0, str(ROOT))
    from faultline.ranks import server

    server.main()


if __name__ == "__main__":
    main()
