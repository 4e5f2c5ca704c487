"""The run that cells are held against knows that it is one."""

from types import SimpleNamespace

import torch

from faultline.catalogue import Variant
from faultline.cells.cell import Cell
from faultline.ranks import main
from faultline.ranks.run import Run
from faultline.scenario import Scenario
from faultline.strategies import Setup


def test_a_reference_may_be_built_without_what_goes_wrong_in_one_process_too(tmp_path):
    """Breaks when a failure that needs no second rank is held against a run that has it, and agrees with it."""
    answer = []

    def scenario(remedy, setup):
        answer.append(setup.reference)
        return Scenario(torch.nn.Linear(1, 1), lambda model, batch: model(batch).sum(), lambda *_: torch.ones(1, 1))

    cell = Cell("it", "broken", "single", world_size=1)
    setup = Setup(0, 1, "off", "fp32", torch.device("cpu"), str(tmp_path), {})
    run = Run(SimpleNamespace(scenario=scenario), Variant("broken"), cell, setup)
    main.record(run, tmp_path / "reference")
    assert answer == [True, True], "once as it is, and once to measure noise"
    assert not setup.reference, "and a cell's own run is none"
