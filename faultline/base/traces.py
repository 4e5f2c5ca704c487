"""Whose an error is: this suite's own, or that of what it runs."""

import errno
import os
import re
import signal
import sysconfig
import traceback
from pathlib import Path

from faultline.base.errors import FaultlineError
from faultline.base.paths import LAB, PACKAGE
from faultline.base.text import one_line, plain

LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}, "<")

# They give a failure's or somebody's model to engine and trainer: what these raise then is not ours.
RUN = ("ranks/checkpointing", "ranks/main", "ranks/plain_loop", "ranks/saved", "strategies/")
# They call the model, or take what it or its trainer returns, such as no loss: an error there may be the model's.
TAKE = (
    *("ranks/accelerate", "ranks/own_model/", "ranks/trainers", "ranks/weight_reads", "strategies/releases"),
    *("programs/build", "programs/in_trainer", "programs/in_trl", "programs/loop", "programs/parts"),
    *("programs/steps", "scenario", "trainers"),
)
# Whoever happens to run then meets these: an error of a kernel that comes late, the memory's end.
_ANYBODY = re.compile(r"CUDA error|out of memory|not enough memory|allocate memory")


_NO_ROOM = "free some room there, or name other folders by TMPDIR and FAULTLINE_FOLDER"
# What a machine may lack, as the system words it, and what to do about it.
LACKS = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EMFILE: "raise the limit: `ulimit -n 4096`",
    errno.ENFILE: "end other programs, or raise the system's limit, fs.file-max",
    errno.EFBIG: "raise the limit: `ulimit -f unlimited`",
    errno.EROFS: "name another folder for temporary files by TMPDIR",
}


def machine_remedy(error: BaseException) -> str:
    """The remedy where an error only says that this machine lacks room, files or the like; else empty.

    Libraries hand on what the system said as a text.
    """
    if isinstance(error, OSError) and error.errno in LACKS:
        return LACKS[error.errno]
    text = message_of(error)
    return next((remedy for number, remedy in LACKS.items() if os.strerror(number) in text), "")


def message_of(error: BaseException) -> str:
    """The message of an exception; that of somebody's own class may raise another one."""
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001
        return f"<its text raises {type(other).__name__}>"


def own_fault(error: BaseException) -> str:
    """The place in this suite's own code that an error is the fault of, ``compare.py:95 in digest``, else empty.

    That is its innermost frame outside of libraries. What this suite raises by intent is no fault of its own.
    """
    if (
        isinstance(error, FaultlineError)
        or _ANYBODY.search(f"{type(error).__name__}: {message_of(error)}")
        or machine_remedy(error)
        or _removed(error)
    ):
        return ""
    within = False  # a library
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(LIBRARIES):
            within = True
            continue
        file = Path(frame.filename).resolve()
        folder = next((each for each in (PACKAGE, LAB) if each in file.parents), None)
        if not folder:
            return ""
        module = file.relative_to(folder).with_suffix("").as_posix()
        of_model = module.startswith(TAKE) or (within and module.startswith(RUN))
        return "" if of_model else f"{file.name}:{frame.lineno} in {frame.name}"
    return ""


def _removed(error: BaseException) -> bool:
    """Whether somebody removed the folder in which a file is looked for, such as a model that clears all of TMPDIR."""
    name = error.filename if isinstance(error, FileNotFoundError) else None
    return isinstance(name, str) and not Path(name).parent.exists()


def fault_of_machine(error: str) -> str:
    """The line that says so of an error that `machine_remedy` knows."""
    return f"this machine is at fault, not the cell: {one_line(error)[:300]}; {machine_remedy(Exception(error))}"


def fault_of_own(place: str, error: str) -> str:
    """The line that says so of a place which `own_fault` gave."""
    return f"a fault of Faultline, not of the model: {place}: {error}"


# What a rank's log says of its death: the message of a C++ exception, a failed check, the memory's end.
_LAST_WORDS = re.compile(r"what\(\):|[Ee]rror|ERROR|[Ff]ail|[Aa]bort|Assert|Fatal|[Oo]ut of memory")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_words(log: str) -> str:
    """The last line of a rank's log that says why it died, or nothing."""
    return next((line.strip() for line in reversed(log.splitlines()) if _LAST_WORDS.search(line)), "")


def last_line(traceback: str) -> str:
    """The source line that raised, from a printed traceback."""
    lines = [
        line.strip() for line in traceback.splitlines() if line.startswith("    ") and set(line.strip()) - set("^~")
    ]
    return lines[-1] if lines else ""


def innermost(stack: str) -> str:
    """Where a rank waits: the first lines of a faulthandler dump's main thread, without wrappers of collectives."""
    frames = [f"{name} ({file.rsplit('/', 1)[-1]}:{line})" for file, line, name in waiting(stack)]
    return " < ".join([frame for frame in frames if not frame.startswith(_WRAPPERS)][:3])


def waiting(stack: str) -> list[tuple[str, str, str]]:
    """File, line and function of each frame of a faulthandler dump's main thread, the innermost first."""
    return re.findall(r'File "([^"]+)", line (\d+) in (\S+)', stack.split("Current thread", 1)[-1])


# torch's decorator of all collectives, and what notes those of a model.
_WRAPPERS = "wrapper (c10d_logger.py:", "noted (collectives.py:"


_PATHS = (
    (re.compile(r"\A.*/(site-packages|python3\.\d{1,2})/"), r"\1/"),
    # The suite's own files are a user's script: their names would give the answer away.
    (re.compile(r"\A.*/(?:faultline|lab/programs|repros|tiny_models|ds_configs)/[\w/.-]*"), "train.py"),
)
_PATH = re.compile(r"(?:/[\w.+@-]+)++/?")  # whole, since a search for its parts would begin anew at each of them
_HERE = re.compile(r"(?<![\w.])/(?:root|home|work|tmp|var)/[\w./+@-]*")


def shorten_paths(text: str) -> str:
    """A text whose paths say nothing of the machine that it comes from."""

    def short(path: re.Match[str]) -> str:
        name = path[0]
        for pattern, shorter in _PATHS:
            name = pattern.sub(shorter, name, count=1)
        return name

    return _HERE.sub("<path>", _PATH.sub(short, plain(text)))


# What a rank says when its peer has ended: it follows from a failure and never is the cause.
VICTIM = re.compile(
    r"Connection (reset|closed) by peer|Broken pipe|Timed out waiting|recvValue failed|Socket closed|"
    r"Connection refused|failed to recv|NCCL communicator was aborted|remote process exited|"
    r"[Ww]atchdog caught|collective operation timeout|watchdog thread terminated|got signal: (?:2|15)\b"
)


def is_victim(message: str) -> bool:
    """Whether a rank's error only says that a peer is gone."""
    return bool(VICTIM.search(message))
