"""Starts a rank server, or another module, in any interpreter: only `faultline` comes from here."""

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

IN_RANKS = "FAULTLINE_RANKS"  # the variable that a rank server and all that it starts have


def main() -> None:
    """Run the module that is named, or become a rank server; the catalogue's folder is the first with modules."""
    spec = spec_from_file_location("faultline", Path(__file__).resolve().parents[1] / "__init__.py")
    assert spec and spec.loader
    package = sys.modules["faultline"] = module_from_spec(spec)
    spec.loader.exec_module(package)

    from faultline.base.paths import ROOT

    sys.path.insert(0, str(ROOT))
    import_module(sys.argv[1] if len(sys.argv) > 1 else "faultline.ranks.server").main()


if __name__ == "__main__":
    main()
