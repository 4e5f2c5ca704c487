"""Prefixes of a line: who wrote it, which is a rank or another name, when, and how grave it is."""

import re
import string

LAYERS = 6  # prefixes that may stand before a line, one behind the other

_BOX = "╭╮╰╯┌┐└┘├┤│┃║─━═┏┓┗┛"
_LEVEL = "(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_NAME = r"(?=[a-z][a-z.-]{0,40}\d)[a-z][\w.-]{0,60}"  # with a digit in it

# By the group that names its meaning; every repetition is bounded or followed by what it can't hold itself, so each
# takes time in proportion to the line.
_FORMS = (
    r"\[(?:local_?)?(?:rank|default|trainer|worker|gpu)[ _:]?(?P<rank>\d{1,5})\]:? ?",  # [rank0]:
    r"\[(?P<number>\d{1,5})\]:(?= ?\S) ?",  # [0]:
    r" {0,4}(?P<srun>\d{1,5}): ",  # 0:
    r"\[\d{1,5},(?:mpirank:)?(?P<mpi>\d{1,5})(?:,[\w.-]{1,60})?\](?:<std(?:out|err)>)?:?",  # [1,0]<stderr>:
    r"\((?P<actor>[\w.<>:-]{1,60}(?: [\w.-]{1,40})? (?:pid|rank)=\d{1,9}(?:, ip=[\w.:]{1,60})?)\) ?",  # (Worker pid=1)
    rf"(?P<host>{_NAME}|\d{{1,3}}(?:\.\d{{1,3}}){{3}}): ",  # node1:
    rf"(?P<service>{_NAME}) {{1,8}}\| ",  # trainer-1 |
    r"(?P<time>\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?(?: [-|])?:? ?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\](?: [-|])? ?"
    r"|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d "  # syslog
    r"|\[ {0,9}\d{1,9}\.\d{3,9}\] "  # the kernel
    r"|\[?[IWEF]\d{3,4} \d\d:\d\d:\d\d[.\d]{0,10} {1,4}(?:\d{1,9} )?[\w./+-]{1,200}:\d{1,6}\] )",  # glog
    rf"(?P<level>\[{_LEVEL}\][ :-]{{0,3}}"
    rf"|{_LEVEL} {{0,5}}[|:-] ?"
    rf"|\[{_LEVEL}\|[\w.:/-]{{1,120}}\] ?"
    r"|\[[\w./-]{1,80}:\d{1,6}(?::\w{1,60})?\] "  # [engine.py:12:train]
    r"|std(?:err|out) [FP] )",  # Kubernetes
    r"(?P<quote>> )",
    r"(?P<group> {2,12}[+|] )",  # of exceptions
)
PREFIX = re.compile("|".join(_FORMS), re.IGNORECASE)
_RICH = re.compile(r"^ *(?:❱ )?([\w/~.<-][\w/~.<>+-]{0,300}\.py):(\d{1,6}) in (<?\w{1,80}>?)$")  # a frame in a box
_FIRST = frozenset("[(> " + string.ascii_letters + string.digits)  # with which any of them begins


def bare(text: str) -> tuple[str, int | None, str, bool, str]:
    """A line's text without prefixes, the rank and the writer that they name, whether it is dated, and its time."""
    rank, names, dated, time, at = None, "", False, "", 0
    for _ in range(LAYERS):
        match = PREFIX.match(text, at) if text[at : at + 1] in _FIRST else None
        if not match:
            break
        kind = match.lastgroup or ""
        if kind in ("rank", "number", "srun", "mpi"):
            rank = int(match[kind])
        elif kind in ("actor", "host", "service"):
            names += f"{match[kind]} "
        elif kind in ("time", "level"):
            dated, time = True, time or (match["time"] or "")
        at = match.end()
    text = text[at:]
    if text and text[0] in _BOX:
        text = "  " + text.strip(_BOX + " ")  # indented, as all lines of a traceback but the last
    if ".py:" in text:
        text = _RICH.sub(r'  File "\1", line \2, in \3', text)
    if rank is not None:
        names += f"rank {rank}"
    return text.rstrip(), rank, names.strip(), dated, time.strip()
