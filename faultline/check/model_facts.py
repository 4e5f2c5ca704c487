"""The facts of a model in one process, before any strategy, and what follows from each, in a line."""

from collections.abc import Sequence

from faultline.base.text import one_line, percent
from faultline.cells.finding import first_names
from faultline.check.findings import facts_of
from faultline.check.known import CUT_OFF, cut_off, within
from faultline.check.variations import NOTHING
from faultline.ranks.facts import Facts
from faultline.runs.results import Result

UNTRIED = "(not tried on your model)"  # what is said of a remedy that follows from what was seen


def of_model(facts: Facts) -> list[str]:
    """The facts of the model in one process, each with what follows from it, in a line."""
    if not facts:
        return []
    lines = [f"{first_names(names)}: {text}" for names, text in _of_parts(facts) if names]
    still = [name for name in (*facts.no_gradient, *facts.zero_gradient) if "lora_" in name]
    if still:
        lines.insert(0, f"{first_names(still)}: these adapters never move, not even in a single process")
    return [*lines, *_of_training(facts), *_of_batch_and_types(facts)]


def _of_parts(facts: Facts) -> Sequence[tuple[Sequence[str], str]]:
    """Names of weights, buffers and modules, each with what follows for them."""
    frozen_input = (
        "get inputs that require no gradient: under reentrant checkpointing these layers get none."
        f" `model.enable_input_require_grads()` mends that {UNTRIED}"
    )
    if cut_off(facts):
        frozen_input = f"get no gradient: {CUT_OFF}"
    return (
        (facts.no_gradient, "never get a gradient: DDP waits for a gradient of every trainable parameter"),
        (facts.zero_gradient, "get only zero gradients"),
        (
            facts.several_calls,
            "run several times in one forward pass: reentrant checkpointing gives their gradients in parts",
        ),
        (facts.frozen_input, frozen_input),
        (
            facts.unfrozen,
            "require gradients only once training has begun: a wrapper made before that may not know of them",
        ),
        (
            facts.batch_statistics,
            "normalise by the statistics of each rank's rows, not of the whole batch: that is no fault of an engine."
            f" `SyncBatchNorm` (on GPUs) takes those of the whole batch, and `GroupNorm` needs none {UNTRIED}",
        ),
        (
            facts.unlike_buffers,
            "are buffers in which each rank's rows leave another value. Unless the model puts these together, DDP goes"
            " on with rank 0's and other engines let ranks keep their own, where one process on all rows has what all"
            " of them leave: cells are held against both",
        ),
        (facts.unequal, "run for some ranks' rows only: ranks use different parameters"),
        (
            facts.unlike_order,
            "run in another order for other ranks' rows: ZeRO-2 adds up gradients in the order in which they come",
        ),
        (
            facts.written_inputs,
            "write an input in place, which is read again after them: autograd knows nothing of that under ZeRO-3",
        ),
        (
            facts.overlapping,
            "are different parameters that share memory: an engine that flattens or shards weights copies each of them."
            f" Use one parameter, of which the forward pass takes parts {UNTRIED}",
        ),
        (
            facts.complex_valued,
            "hold complex numbers, which some engines refuse: use a real parameter with a last dimension of 2, and"
            f" `torch.view_as_complex` in the forward pass {UNTRIED}",
        ),
        (
            facts.sparse,
            f"get sparse gradients, which only some engines take: use `sparse=False` {UNTRIED}",
        ),
        (
            facts.hooked,
            "have hooks on their gradients: FSDP gives the model other parameters, on which these hooks don't run. Let"
            f" an autograd function do it in the forward pass {UNTRIED}",
        ),
        (
            facts.of_loss,
            "are parameters of the loss and not of the model: no engine reduces their gradients, and nothing here"
            f" trains or compares them. Put them into the model {UNTRIED}",
        ),
        (
            facts.unregistered,
            "hold weights as plain tensors, or in a plain list or dictionary: no engine trains, moves or saves them. If"
            f" that isn't meant, use `nn.Parameter`, `nn.ModuleList`, `nn.ModuleDict` or `nn.ParameterList` {UNTRIED}",
        ),
        (
            facts.written,
            "are trained, and the forward pass writes them: an engine that trains a copy or has shards does otherwise,"
            " and a rank may write what its own rows give",
        ),
        (
            facts.left_out,
            "get a gradient in some steps only: DDP waits for one in each, and an engine that flattens weights goes on"
            " to move them by their momentum",
        ),
        (facts.moved_by_hand, "require no gradients, and the model moves them by itself"),
        (
            facts.read_outside,
            "are read where no forward pass of their module runs: there, a rank may have a part of them",
        ),
        (
            facts.without_unit,
            "don't run, but their parts do: where each of them is a unit of FSDP, nothing gathers these",
        ),
        (facts.without_root, "run where the model's own forward pass doesn't: what wraps the model isn't asked"),
    )


def _of_training(facts: Facts) -> list[str]:
    """Lines about the loss, the random numbers and the backward passes."""
    lines = []
    if facts.whole_apart > NOTHING and not (facts.batch_statistics or facts.unequal):
        why = (
            "as with a sum, a mean over uneven tokens, negatives or statistics of the batch, or what is no rows, such"
            " as a graph's edges: cells are held against both"
        )
        if facts.draws:
            why = "and other random numbers are drawn for them, which may be all of that"
        apart = percent(facts.whole_apart)
        lines.append(f"the loss of all rows at once is {apart} from the mean of the ranks' losses, {why}")
    if facts.units and (facts.moved_by_hand or facts.without_root or facts.read_outside):
        lines.append(
            f"{units(facts)}: where these are sharded with others, what is read or moved outside of a forward pass may"
            " do otherwise"
        )
    if facts.draws:
        lines.append(
            f"draws random numbers ({first_names(facts.draws)}): each rank draws here what one process draws for its"
            " rows. In your training, ranks draw what their seeds give them"
        )
    if facts.own_backward:
        lines.append("the loss runs a backward pass by itself, beside the one of its training")
    if facts.input_gradient:
        lines.append(
            "the loss asks for a gradient of its inputs: DeepSpeed takes that for a backward pass of the training"
        )
    if facts.double_backward:
        lines.append("a backward pass makes a graph of itself (`create_graph=True`), as a gradient penalty needs it")
    return lines


def _of_batch_and_types(facts: Facts) -> list[str]:
    """Lines about the model's own checkpointing, its types, its tied weights and the generated batch."""
    lines = []
    if facts.checkpointing != "off":
        lines.append(
            f"checkpoints by itself ({facts.checkpointing}), or runs modules again in its backward pass as checkpoints"
            " do; also in the cells with checkpointing off"
        )
    if facts.cast:
        lines.append(
            f"has {' and '.join(facts.cast)} weights: they are cast to fp32 here, and --precision bf16 casts from there"
        )
    lines += _of_tied(facts.tied)
    lines += [f"the generated batch can't feed this: {one_line(text)}" for text in facts.not_fed]
    return lines


def _of_tied(tied: Sequence[Sequence[str]]) -> list[str]:
    """A line for each tied weight, and one for all that two modules share, as where one is registered twice."""
    shared: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for names in tied:
        parts = [name.split(".") for name in names]
        while all(len(each) > 1 for each in parts) and len({each[-1] for each in parts}) == 1:
            parts = [each[:-1] for each in parts]
        shared.setdefault(tuple(map(".".join, parts)), []).append(names)
    lines = []
    for modules, weights in shared.items():
        several = len(weights) > 1
        names = " = ".join(map(one_line, modules if several else weights[0]))
        lines.append(f"{names}: {f'{len(weights)} weights of each are ' if several else ''}tied")
    return lines


def units(facts: Facts) -> str:
    """The classes of modules that FSDP shards by themselves here."""
    return f"under FSDP, each {' and each '.join(map(one_line, facts.units))} is a unit of its own here"


def by_rank(results: Sequence[Result]) -> list[str]:
    """The modules that run on some ranks only, which one process can't show."""
    names = dict.fromkeys(name for result in results for name in result.checked.by_rank)
    unequal = facts_of(results).unequal
    by_rows = [*unequal, *(name for name in names if any(within(each, name) for each in unequal))]  # with all parts
    others = [name for name in names if not any(within(name, each) for each in by_rows)]
    return [f"{first_names(others)}: run on some ranks only, whatever their rows are"] if others else []


def collectives(results: Sequence[Result]) -> list[str]:
    """The collectives of the model and its loss, and where these ask for the rank: one process can't show that."""
    names = dict.fromkeys(name for result in results for name in result.checked.collectives)
    return [f"{first_names([*names])}: called beside the engine"] if names else []
