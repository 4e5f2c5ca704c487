"""What runs on a node of a fleet: a rank server with its stack, and the references that it made or was given."""

import contextlib
import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline import strategies
from faultline.base.errors import UsageError
from faultline.cells.cell import Cell
from faultline.fleet.peers import Peer, address
from faultline.ranks.facts import Facts
from faultline.ranks.job import Job
from faultline.ranks.report import ErrorReport
from faultline.runs import cache, gpus
from faultline.runs.nodes import Begun, Finished, Seen
from faultline.runs.results import Result
from faultline.runs.runner import References, RunCell
from faultline.runs.supervisor import RankServer
from faultline.stacks import environments
from faultline.stacks.environments import Environment


@dataclass(frozen=True)
class Kit:
    """What a slot needs: the stack, the device, how a cell is run, and on how many `nodes` its ranks are."""

    stack: Environment
    device: str
    run: RunCell
    nodes: int = 1
    rows: int = strategies.ROWS


@dataclass(frozen=True)
class Made:
    """A reference on its way to other nodes: its name, its file's content, and what is known of it."""

    name: str
    content: bytes
    facts: Facts
    problem: ErrorReport | None


@dataclass(frozen=True)
class Answer:
    """A result, and the references that were made for it."""

    result: Result
    made: Sequence[Made]

    def packed(self) -> bytes:
        """Bytes, which Ray sends as they are: what it pickles itself takes it five times as long."""
        return pickle.dumps(self)

    @staticmethod
    def unpacked(content: bytes) -> "Answer":
        answer = pickle.loads(content)
        assert isinstance(answer, Answer)
        return answer


class Post:
    """A rank server on this node, of which an actor has one: so no process of Ray's forks or imports torch."""

    def __init__(self, kit: Kit, name: str, given: Sequence[str], address: str) -> None:
        """On a node of that name, with the GPUs that it was `given`, by their numbers or UUIDs.

        Nothing that can fail is done here: of an actor's first call, Ray hands on what was raised; of this, only that
        the actor died.
        """
        self._kit, self._name, self._given, self._address = kit, name, given, address
        self._open, self._lent = contextlib.ExitStack(), contextlib.ExitStack()

    def greet(self) -> str:
        """Start the rank server; a digest of the code that runs cells here.

        Raises Uninstallable and UsageError where the stack or a GPU can't be had here, NeverReady if it doesn't start.
        """
        kit = self._kit
        os.environ[strategies.ROWS_VARIABLE] = str(kit.rows)
        at = address(self._address) if kit.nodes > 1 else ""
        with self._closed_by_errors():
            self._server = self._open.enter_context(
                RankServer(python(kit.stack), device=kit.device, address=at, name=self._name)
            )
            self._server.gpus = gpus.seen(",".join(self._given)).gpus if self._given else ()
            self._references = References(self._server.folder)
            self._server.start()
            return cache.machinery()

    def join(self, peers: Sequence[Peer]) -> None:
        """Spread the ranks of each cell over this node and others; raises UsageError where one can't see our folder."""
        for peer in peers:
            if not peer.sees(str(self._server.folder)):
                raise UsageError(
                    f"node {peer.name} doesn't see {self._server.folder} of node {self._server.name}: cells on several"
                    " nodes need a folder that all of them share, which TMPDIR names as their `ray start` runs"
                )
        self._server.peers = peers

    def sees(self, folder: str) -> bool:
        """Whether a folder of another node is there."""
        return Path(folder).is_dir()

    def begin(self, job: Job) -> Begun:
        """Start the ranks of another slot's cell that are on this node."""
        self._lent.enter_context(self._taken())
        return self._server.begin(job)

    def look(self, timeout: float, failed: bool) -> Seen:
        """What these ranks say within so many seconds, or how they are."""
        return self._server.look(timeout, failed)

    def finish(self, hung: bool) -> Finished:
        """End them."""
        with self._lent:
            return self._server.finish(hung)

    def abort(self, leaving: bool) -> None:
        """End them, in order or not."""
        with self._lent:
            self._server.abort(leaving)

    def run(self, cell: str, *given: Made) -> bytes:
        """Run a cell, by its id; `given` are references that it may need and that this slot doesn't have. The answer is
        packed.
        """
        for each in given:
            self._references.add(each.name, each.content, each.facts, each.problem)
        before = self._references.names()
        with self._closed_by_errors(), self._taken():
            entry = self._kit.run(self._server, self._references, Cell.parse(cell))
        return Answer(entry, [self._made(name) for name in sorted(self._references.names() - before)]).packed()

    def _taken(self) -> contextlib.AbstractContextManager[None]:
        """The slot's GPUs, for as long as a cell is on them: others of this machine, without Ray, may want them too."""
        return gpus.taken(self._server.gpus, lambda: self._server.killed)

    @contextlib.contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        """An error ends the run, and so does the exit by which Ray ends an actor: nobody asks it to close then."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _made(self, name: str) -> Made:
        reference = self._references.known(name)
        content = b"" if reference.problem else reference.file.read_bytes()
        return Made(name, content, reference.facts, reference.problem)

    def close(self) -> None:
        """End the rank server and remove its folder."""
        self._open.close()


def python(stack: Environment) -> str:
    """A stack's interpreter on this node: that of the same name if it has the same packages, else one that is made.

    Where nobody says what a stack has, its interpreter has to be there.
    """
    if not stack.lock and not shutil.which(stack.python):
        raise UsageError(f"there is no {stack.python} on this node")
    if not stack.lock:
        return stack.python
    with contextlib.suppress(UsageError):
        if environments.existing(stack.python).lock == stack.lock:
            return stack.python
    return environments.make(stack.lock).python
