"""The workers of this machine: rank servers that stay from one run to the next, and what they leave."""

from faultline.cells.cell import Cell
from faultline.runs import engines
from faultline.runs.driver import Plan
from faultline.runs.pool import LOCAL
from faultline.stacks.environments import Environment
from tests.support import entries

CELL = Cell("grpo_lora_no_grad", "broken", "ddp")


def served(engine, python="python"):
    """The rank server and the references that a run of one cell is given on an engine."""
    seen = []

    def run(server, references, cell):
        seen.append((server, references))
        return entries.entry(cell)

    engines.run_all([CELL], Plan(1, Environment(python, ""), run), lambda entry: None, engine)
    return seen[0]


def test_a_warm_pool_keeps_its_rank_servers_and_no_references():
    """Breaks when an exploration waits for its servers each round, or its references fill the disk."""
    with LOCAL.warm() as pool:
        (first, references), (second, others) = served(pool), served(pool)
        assert first is second and first.folder.exists()
        assert not references.folder.exists() and not others.folder.exists()
    assert not first.folder.exists(), "they end with the pool"


def test_a_pool_that_is_not_warm_ends_its_servers():
    """Breaks when servers of one run are still there in the next."""
    (first, _), (second, _) = served(LOCAL), served(LOCAL)
    assert first is not second and not first.folder.exists()


def test_a_warm_pool_has_a_new_server_for_a_killed_one_and_for_another_stack():
    """Breaks when cells run on a server that is gone, or on the stack of the run before."""
    with LOCAL.warm() as pool:
        first, _ = served(pool)
        first.kill()
        second, _ = served(pool)
        other, _ = served(pool, "another-python")
        assert len({id(each) for each in (first, second, other)}) == 3
        assert not first.folder.exists() and not second.folder.exists()
    assert not other.folder.exists()
