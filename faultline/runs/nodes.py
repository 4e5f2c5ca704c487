"""A cell's ranks, on one node or on several: begun, watched and ended together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from faultline.base.axes import COMPILE
from faultline.base.traces import is_victim
from faultline.ranks.job import Job
from faultline.ranks.report import Message, Report
from faultline.runs.hangs import TICK
from faultline.strategies import Evidence

DEADLINE = 120.0  # seconds that a cell may take at the very most
COMPILING = 4  # times as long, where ranks trace their model
SETTLE_TICK = 0.05  # seconds between two looks once a rank has failed
SETTLED = 6  # looks in a row that find its peers asleep: they have no more to say
PATIENCE = 0.8  # seconds for peers that don't fall asleep, as in NCCL: a failed cell is over within a second

STILL_RUNNING = "still running after"  # so begins the hang of ranks that a deadline ended


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended: with a report, by an exit code (negative: a signal), or killed while it hung.

    `shown` is the evidence that it left before it began to train; `at` is when the exit was seen, on the clock of a
    report's error: so the first of several causes is known. `node` is where it ran, if the cell was on several.
    """

    report: Report | None = None
    exit: int | None = None
    stack: str = ""
    log: str = ""
    shown: Evidence = field(default_factory=dict)
    at: float = 0.0
    node: str = ""

    @property
    def evidence(self) -> Evidence:
        return self.report.evidence if self.report else self.shown


@dataclass(frozen=True)
class Ended:
    """What became of a cell's ranks; `hang` says what was seen when they made no progress."""

    ranks: list[RankEnd]
    hang: str = ""
    seconds: float = 0.0
    pids: Sequence[int] = ()

    def who(self, rank: int) -> str:
        """A rank, and its node where there are several."""
        return f"rank {rank}" + (f" on {node}" if (node := self.ranks[rank].node) else "")

    @property
    def finished(self) -> bool:
        """Whether every rank came to its end without an error."""
        return not self.hang and all(rank.report and not rank.report.error for rank in self.ranks)

    def elsewhere(self) -> list[str]:
        """Where what ranks show of their nodes isn't where they were sent: the name, and one rank server for each."""
        doubts, servers = [], dict[object, str]()
        for rank, end in enumerate(self.ranks):
            shown = end.evidence.get("node", {}) if "device" in end.evidence else {"name": end.node}
            if shown.get("name", "") != end.node:
                doubts.append(f"{self.who(rank)}: it ran on {shown.get('name') or 'a node without a name'}")
            elif "server" in shown:
                other = servers.setdefault((shown["host"], shown["server"]), end.node)
                doubts += [f"{self.who(rank)}: its rank server has ranks of {other}"] if other != end.node else []
        return doubts


@dataclass(frozen=True)
class Begun:
    """The ranks of a node have started: their processes, where all of the cell write and meet, and the node's clock."""

    pids: Sequence[int]
    folder: str
    address: str
    port: int
    clock: float


@dataclass(frozen=True)
class Seen:
    """What a look at a node's ranks showed: what they said, or how many looks in a row found all of them asleep, and
    whether they `hang`."""

    messages: Sequence[Message] = ()
    sleeps: int = 0
    hang: str = ""


@dataclass(frozen=True)
class Left:
    """What a rank left in files, and what was heard as its cell ended."""

    stack: str
    log: str
    shown: Evidence


@dataclass(frozen=True)
class Finished:
    """The end of a node's ranks: what was still heard, and what each of them left."""

    messages: Sequence[Message]
    left: Sequence[Left]


class Node(Protocol):
    """Where ranks of a cell run: a rank server of this machine, or one elsewhere. Every call raises ServerDied where it
    is gone."""

    @property
    def name(self) -> str:
        """By which a person knows it."""

    def begin(self, job: Job) -> Begun:
        """Start the ranks that the job has for this node."""

    def look(self, timeout: float, failed: bool) -> Seen:
        """What its ranks say within so many seconds, or how they are; `failed`: some rank of the cell has."""

    def finish(self, hung: bool) -> Finished:
        """End its ranks; nothing of the cell is left on the node."""

    def abort(self, leaving: bool) -> None:
        """End the ranks, in order or not; `leaving`: this process may be killed soon."""


class Lead(Node, Protocol):
    """The node that a cell is sent to. Others may take a share of its ranks; each cell is over by its deadline."""

    peers: Sequence[Node]
    deadline: float


class Watched:
    """A cell's ranks, as long as they run: what they reported, how they ended, and whether they hang.

    `failed_at` is when the first rank failed by itself, and not because a peer is gone.
    """

    def __init__(self, ranks: int, deadline: float) -> None:
        self.ranks, self.deadline = ranks, deadline
        self.started = time.monotonic()
        self.reports: dict[int, Report] = {}
        self.exits: dict[int, Message] = {}
        self.hang = ""
        self.failed_at = 0.0

    def running(self, ranks: range) -> bool:
        """Whether any of these ranks is still to be heard of."""
        return any(rank not in self.reports and rank not in self.exits for rank in ranks)

    def on_message(self, message: Message, ahead: float) -> None:
        """Take what a rank said; its node's clock is so many seconds `ahead` of this one's."""
        if report := message.report:
            if error := report.error:
                report = replace(report, error=replace(error, at=error.at - ahead))
                if not is_victim(error.message):
                    self.on_failure()
            self.reports[message.rank] = report
        elif message.exit is not None:
            self.exits[message.rank] = replace(message, at=message.at - ahead)
            self.on_failure()

    def on_failure(self) -> None:
        self.failed_at = self.failed_at or time.monotonic()

    def on_silence(self, seen: Sequence[Seen]) -> bool:
        """No rank was heard of for a while: whether nothing more will come of them, by looks at their nodes."""
        if self.failed_at:
            return all(each.sleeps >= SETTLED for each in seen) or time.monotonic() - self.failed_at > PATIENCE
        hangs = [each.hang for each in seen]
        self.hang = hangs[0] if all(hangs) else ""
        if not self.hang and time.monotonic() - self.started > self.deadline:
            self.hang = f"{STILL_RUNNING} {self.deadline:.0f} s"
        return bool(self.hang)

    def end(self, rank: int, left: Left, node: str) -> RankEnd:
        """How a rank ended; one that reported an error by that, whatever ended its process later."""
        report = self.reports.get(rank)
        exited = Message() if report and report.error else self.exits.get(rank, Message())
        return RankEnd(report, exited.exit, left.stack, left.log, left.shown, exited.at, node)


def run(server: Lead, job: Job) -> Ended:
    """Run the ranks of a job to their end, as many on each of the server's `peers` where they can be dealt evenly;
    nothing of them is left when this returns. Raises ServerDied."""
    together = [server, *server.peers]
    spread = job.world_size > 1 and not job.world_size % len(together) and not job.half
    nodes = together if spread else [server]
    try:
        return _run(nodes, job, server.deadline * (COMPILING if job.cell.compile != COMPILE.default else 1))
    except BaseException as error:
        # A cell that was not ended in order takes its servers with it.
        for node in nodes:
            node.abort(leaving=isinstance(error, SystemExit))
        raise


def _run(nodes: Sequence[Node], job: Job, deadline: float) -> Ended:
    share = job.world_size // len(nodes)
    ranks = [range(first, first + share) for first in range(0, job.world_size, share)]
    several = len(nodes) > 1
    begun: list[Begun] = []
    ahead = []
    for node, part in zip(nodes, ranks, strict=True):
        of_node = replace(job, first_rank=part.start, ranks_here=share, node=node.name if several else "")
        before = time.monotonic()
        if begun:
            of_node = replace(of_node, folder=begun[0].folder, meeting=begun[0].address, port=begun[0].port)
        begun.append(node.begin(of_node))
        ahead.append(begun[-1].clock - (before + time.monotonic()) / 2 if len(begun) > 1 else 0.0)
    cell = Watched(job.world_size, deadline)
    looking = True
    while looking and any(map(cell.running, ranks)):
        timeout = (SETTLE_TICK if cell.failed_at else TICK) / len(nodes)
        seen = []
        for node, part, off in zip(nodes, ranks, ahead, strict=True):
            if cell.running(part):
                seen.append(node.look(timeout, bool(cell.failed_at)))
                for message in seen[-1].messages:
                    cell.on_message(message, off)
        looking = any(each.messages for each in seen) or not cell.on_silence(seen)
    seconds = time.monotonic() - cell.started
    finished = [node.finish(bool(cell.hang)) for node in reversed(nodes)][::-1]  # the first has the folder of all
    for end, off in zip(finished, ahead, strict=True):
        for message in end.messages:
            cell.on_message(message, off)
    ends = [
        cell.end(rank, left, node.name if several else "")
        for node, part, end in zip(nodes, ranks, finished, strict=True)
        for rank, left in zip(part, end.left, strict=True)
    ]
    return Ended(ends, cell.hang, seconds, [pid for each in begun for pid in each.pids])
