"""Events of a log: what failed first, and what only followed from it."""

import pytest

from faultline.diagnose import lines as diagnose_lines
from faultline.diagnose import reader as diagnose_reader
from tests.support.logs import FRAMES, WHILE_HANDLED, lines, traceback


def events_of(*texts):
    """The events of logs, one read behind the other."""
    reader = diagnose_reader.EventReader()
    for number, text in enumerate(texts):
        for line in lines(text, f"log{number}"):
            reader.take(line)
    return reader.events()


def cause(*texts):
    event = events_of(*texts).cause()
    return event and (event.text, event.rank)


FOLLOWS = [
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:29500",
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 12 got signal: 15",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.",
    "KeyboardInterrupt",
    "BrokenPipeError: [Errno 32] Broken pipe",
]


@pytest.mark.parametrize("victim", FOLLOWS)
def test_what_only_follows_is_never_the_cause(victim):
    """Breaks when somebody is told of a broken connection where another rank's error broke it."""
    relevant = "ValueError: the cause"
    for text in (traceback(victim, 0) + traceback(relevant, 1), traceback(relevant, 1) + traceback(victim, 0)):
        assert cause(text) == (relevant, 1)
    alone = events_of(traceback(victim, 0))
    assert alone.cause().follows, "a log of victims alone has no cause to show"


def test_interleaved_ranks_are_read_apart():
    """Breaks when two ranks that print at once become one traceback with the lines of both."""
    first = traceback("RuntimeError: Connection reset by peer", 0).splitlines()
    second = traceback("ValueError: the cause\nover two lines", 1).splitlines()
    mixed = [line for pair in zip(first, second, strict=False) for line in pair] + second[len(first) :]
    assert cause("\n".join(mixed)) == ("ValueError: the cause\nover two lines", 1)
    both = traceback("ValueError: both").splitlines()
    assert cause("\n".join(line for line in both for _ in range(2))) == ("ValueError: both", None), "without prefixes"


def test_an_error_that_was_survived_is_not_the_cause():
    """Breaks when a caught exception of an hour ago is told instead of what ended the run."""
    text = traceback("ImportError: optional") + "{'loss': 0.1, 'epoch': 1}\n" + traceback("ValueError: the end")
    assert cause(text) == ("ValueError: the end", None)
    other = traceback("ValueError: of rank 1", 1) + "[rank0]: {'loss': 0.1}\n"
    assert cause(other) == ("ValueError: of rank 1", 1) and not events_of(other).events[0].survived
    died = traceback("ValueError: x")
    assert not events_of(died, "{'loss': 0.1}\n").cause().survived, "the log of another rank, which trains on"
    assert cause(died[:-20], traceback("KeyError: 'y'")) == ("KeyError: 'y'", None)
    end = traceback("KeyError: 'two'")
    again = events_of(text + "{'loss': 0.1}\n" + end + "{'loss': 0.1}\n" + end).cause()
    assert (again.text, again.survived, again.number) == ("KeyError: 'two'", False, 16), "it came again at the end"


SHAPES = {
    "behind a progress bar": ("  0%|  | 0/10 [00:00<?, ?it/s]" + traceback("ValueError: x"), "ValueError: x"),
    "cut off at its head": (FRAMES + "ValueError: x\n", "ValueError: x"),
    "one line alone": ("ValueError: x\n", "ValueError: x"),
    "its repr": ("uncaught exception: RuntimeError('x and y')\n", "RuntimeError: x and y"),
    "its message below": (
        traceback("torch.OutOfMemoryError:\nout of memory."),
        "torch.OutOfMemoryError: out of memory.",
    ),
    "a bare assert": (traceback("AssertionError").replace("trainer.train()", "assert a"), "AssertionError: assert a"),
    "indented by a launcher": (
        "  traceback : Traceback (most recent call last):\n"
        + "".join(f"    {line}\n" for line in f"{FRAMES}ValueError: x".splitlines()),
        "ValueError: x",
    ),
    "rich's box": (
        "╭───── Traceback (most recent call last) ─────╮\n│ /a/train.py:3 in <module>          │\n"
        "│ ❱ 3 │   trainer.train()            │\n╰─────────────────╯\nValueError: one two\nthree\n",
        "ValueError: one two\nthree",
    ),
    "a notebook": (
        "---------------------------------------------------------------------------\n"
        "ValueError                                Traceback (most recent call last)\n"
        "Cell In[3], line 1\n----> 1 trainer.train()\n\nFile ~/x.py:12, in train(self)\n---> 12 raise\n\n"
        "ValueError: x\n",
        "ValueError: x",
    ),
    "a group": (
        '  + Exception Group Traceback (most recent call last):\n  |   File "t.py", line 3, in <module>\n'
        "  | ExceptionGroup: several (1 sub-exception)\n  +-+---------------- 1 ----------------\n"
        '    | Traceback (most recent call last):\n    |   File "t.py", line 1, in f\n    | ValueError: x\n'
        "    +------------------------------------\n",
        "ValueError: x",
    ),
    "JSON over several lines": (
        '[\n  {\n    "textPayload": "Traceback (most recent call last):\\n  File \\"x\\", line 1\\nValueError: x\\n",\n'
        '    "timestamp": "2025-04-02T10:11:12Z"\n  }\n]\n',
        "ValueError: x",
    ),
    "a notebook in one line": (
        '{"cells": [{"outputs": [{"ename": "ValueError", "traceback": ["Traceback (most recent call last)\\nCell", '
        '"\\u001b[0;31mValueError\\u001b[0m: x"]}]}]}\n',
        "ValueError: x",
    ),
    "spawned": (
        traceback("torch.multiprocessing.spawn.ProcessRaisedException: ")
        + "\n-- Process 1 terminated with the following error:\n"
        + traceback("ValueError: x"),
        "ValueError: x",
    ),
    "C++": (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  out of range\n"
        "Exception raised from f\n",
        "c10::Error: out of range\nException raised from f",
    ),
    "torchrun's": ("E0402 10:11:12.3 9 x/api.py:8] failed (exitcode: -9) local_rank: 1 of binary: python\n", "SIGKILL"),
    "DeepSpeed's": ("[2025-01-01 00:00:00,000] [ERROR] [launch.py:3:main] exits with return code = -11\n", "SIGSEGV"),
    "the kernel": ("[12345.678901] Out of memory: Killed process 4242 (python)\n", "SIGKILL"),
    "a shell": ("run.sh: line 3: 4242 Killed                  python train.py\n", "SIGKILL"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_errors_are_found_in_whichever_shape(shape):
    text, expected = SHAPES[shape]
    answer, _ = cause(text)
    assert answer == expected or (answer.startswith(f"{expected}: ") and expected.startswith("SIG")), answer


@pytest.mark.parametrize(
    "text",
    [
        "Loading checkpoint shards: 100%|##| 3/3\n",
        "    raise ValueError('x')\n",
        "except ValueError:\n",
        'Exception ignored in: <function f>\nTraceback (most recent call last):\n  File "x", line 1, in f\n',
        "{'loss': 0.1}\n",
        "UserWarning: something\n",
        "",
    ],
)
def test_what_is_no_error_is_none(text):
    assert not events_of(text).events


@pytest.mark.slow
def test_a_log_of_errors_alone_ends():
    """Breaks when each of a million errors is kept, or looked at for ever."""
    text = "".join(f"[rank{n % 9}]: ValueError: number {'x' * n}\n" for n in range(2000))
    answer = events_of(text)
    assert len(answer.events) == diagnose_reader.MOST and answer.more > 1000
    reader = diagnose_reader.EventReader()
    for number in range(diagnose_reader.ENOUGH):
        reader.take(diagnose_lines.Line("log", number, "ValueError: x"))
    assert "Error" not in reader.words
    reader.take(diagnose_lines.Line("log", number, "KeyError: x"))
    for last, text in enumerate(traceback("KeyError: 'the end'").splitlines(), number):
        reader.take(diagnose_lines.Line("log", last, text))
    events = reader.events()
    assert events.cause().text == "KeyError: 'the end'" and events.partly
    assert "KeyError: x" not in [event.text for event in events.events], "a line without a traceback was read"
    for number in range(diagnose_reader.ENOUGH):
        reader.take(diagnose_lines.Line("log", number, f"Traceback (most recent call last): {number}"))
    assert not reader.words and not reader.busy


def test_the_error_that_ends_the_run_is_kept_however_many_were_survived():
    """Breaks when a run that survived hundreds of errors is told of the first of them."""
    numbers = range(diagnose_reader.MOST + 50)
    survived = [traceback(f"ValueError: survived {n}") + "{'loss': 0.1}\n" for n in numbers]
    answer = events_of("".join(survived) + traceback("KeyError: 'the end'"))
    assert answer.cause().text == "KeyError: 'the end'" and len(answer.events) == diagnose_reader.MOST
    assert answer.more == 51 and answer.events[0].text == "ValueError: survived 51", "the oldest make room"
    noise = "".join(f"[rank{n}]: RuntimeError: Connection closed by peer {n}\n" for n in numbers)
    assert cause(noise + traceback("KeyError: 'the end'")) == ("KeyError: 'the end'", None)
    lines = "".join(f"ValueError: {n}\n" for n in numbers)
    assert cause(lines + traceback("KeyError: 'the end'")) == ("KeyError: 'the end'", None), "a line outweighs it"


@pytest.mark.parametrize(
    "link", [WHILE_HANDLED, "\nThe above exception was the direct cause of the following exception:\n\n"]
)
def test_chained_exceptions_know_of_each_other(link):
    """Breaks when the first of them, or what was raised later, is told without the others, or with another's."""
    raised = ["KeyError: 'x'", "ValueError: y", "RuntimeError: z"]
    answer = events_of(link.join(map(traceback, raised)) + "\n" + traceback("OSError: of another"))
    assert answer.cause().text == raised[0] and [event.text for event in answer.chain(answer.cause())] == raised
    assert [event.text for event in answer.chain(answer.events[-1])] == ["OSError: of another"]


def test_what_is_raised_while_a_consequence_is_handled_is_one():
    relevant, peer = traceback("ValueError: the cause", 1), "RuntimeError: Connection reset by peer"
    handled = f"[rank0]: {WHILE_HANDLED.strip()}\n" + traceback("OSError: could not clean up", 0)
    assert cause(traceback(peer, 0) + handled + relevant) == ("ValueError: the cause", 1)
    pool = 'multiprocessing.pool.RemoteTraceback: \n"""\n' + traceback("KeyError: 'x'") + '"""\n' + WHILE_HANDLED
    assert cause(pool + traceback("KeyError: 'x'")) == ("KeyError: 'x'", None)


WATCHDOG = (
    "[rank3]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: x\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 PG GUID 0 Rank 3] Process group watchdog thread terminated with exception: timeout\n"
    "Fatal Python error: Aborted\n"
    "E0402 10:11:12.3 9 x/api.py:8] failed (exitcode: -6) local_rank: 3 (pid: 4) of binary: python\n"
)


def test_an_abort_after_the_watchdog_is_no_cause():
    """Breaks when SIGABRT, with which NCCL's watchdog ends a rank that waited in vain, is told as what went wrong."""
    events = events_of(WATCHDOG).events
    assert all(event.follows for event in events) and events[0].rank == 3
    assert cause(WATCHDOG + traceback("ValueError: the cause", 1)) == ("ValueError: the cause", 1)
    assert cause("Fatal Python error: Aborted\n") == ("SIGABRT: Fatal Python error: Aborted", None)


def test_a_line_with_an_error_is_not_taken_for_what_comes_after_it():
    """Breaks when the words to search for hold the next lines of the log."""
    for text in ("ERROR in step 3: ValueError: x\nSaving the model\n", "ValueError: x\nSaving the model\n"):
        assert cause(text) == ("ValueError: x", None)
    record = '{"jsonPayload": {"message": "ValueError: x", "levelname": "ERROR"}, "severity": "ERROR"}\n'
    assert cause(record) == ("ValueError: x", None)


def test_times_decide_which_of_several_files_failed_first():
    """Breaks when the first cause depends on the order in which somebody named the logs of the nodes."""

    def node(time, rank, error):
        entry = f"  time      : 2025-04-02_10:00:{time}\n  host      : x\n  rank      : {rank} (local_rank: 1)\n"
        return traceback(error, rank) + f"Root Cause (first observed failure):\n[0]:\n{entry}"

    assert cause(node("09", 1, "ValueError: late"), node("05", 9, "KeyError: 'early'"))[0] == "KeyError: 'early'"
    late = "2025-04-02T10:00:09.5Z ValueError: late\n"
    early = "2025-04-02 12:00:09,400+02:00 KeyError: 'early'\n"
    untimed = "OSError: whenever\n"

    def first(*texts):
        return events_of(*texts).cause().text

    assert first(late, early) == first(early, late) == "KeyError: 'early'"
    assert first(late, untimed, early) == "ValueError: late", "where one has no time the order of the files is left"
    cloud = '{"message": "KeyError: early", "timestamp": "2025-04-02T10:00:09.4Z", "pod": "a-1"}\n'
    assert first(late, cloud) == "KeyError: early"


def test_a_traceback_that_was_cut_off_ends_when_only_others_write():
    """Breaks when one torn traceback has every later line of gigabytes looked at."""
    reader = diagnose_reader.EventReader()
    reader.take(diagnose_lines.Line("log", 1, "Traceback (most recent call last):", 3, "rank 3"))
    for number in range(diagnose_reader.QUIET + 1):
        assert reader.busy
        reader.take(diagnose_lines.Line("log", number, "step", 1, "rank 1"))
    assert not reader.busy
