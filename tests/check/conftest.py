"""Checks of the models of tests/support on real ranks."""

import json

import pytest

from faultline.base.paths import ROOT
from faultline.cells.cell import Cell
from faultline.check import cell as checking
from faultline.check import target
from faultline.runs.runner import References

MODELS = ROOT / "tests" / "support"


@pytest.fixture(scope="session")
def run(shared_server, tmp_path_factory):
    """Check a function of own_models.py or of another file of that folder, or a config, in one cell.

    The reference of each target is made once.
    """
    made = {}

    def run(what, strategy="ddp", mode="off", world=2, lora="", inject="", units="", of=checking, **axes):
        key = str(what), lora, units
        if key not in made:
            folder = tmp_path_factory.mktemp("references")
            if isinstance(what, dict):
                (folder / "config.json").write_text(json.dumps(what))
                asked = str(folder)
            else:
                asked = str(MODELS / (what if ":" in what else f"own_models.py:{what}"))
            made[key] = asked, References(folder)
        asked, references = made[key]
        cell = Cell("check", "model", strategy, mode, world_size=world, **axes)
        return of.run(target.parse(asked, lora, (), units), shared_server, references, cell, inject)

    return run
