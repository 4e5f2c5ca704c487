"""Reading logs: any bytes, encoding and prefix, in bounded memory, the same however they come, and found by words."""

import gzip
import io
import itertools
import random
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.base.text import plain
from faultline.diagnose import context, signs
from faultline.diagnose import lines as diagnose_lines
from faultline.diagnose.signs import needed

# Pieces that break naive readers, beside bytes of any kind.
NASTY = st.sampled_from(
    [
        *(b"\r", b"\n", b"\r\n", b"\x1b[31m", b"\x1b]0;title\x07", b"\x9b2J", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf"),
        *(b"\x1f\x8b", b"[rank1]: ", b"Traceback (most recent call last):", b'  File "x", line 1', b"RuntimeError: no"),
        *("╭─│❱".encode(), "é".encode()[:1], b'{"log": "a\\n', b"2025-04-02 10:11:12 ", b"\xe2\x80\xae"),
    ]
)
CONTENT = st.lists(st.one_of(NASTY, st.binary(max_size=20)), max_size=40).map(b"".join)


def texts(content: bytes, **how: object) -> list[str]:
    return [line.text for line in diagnose_lines.lines("log", io.BytesIO(content), **how)]


@given(CONTENT)
def test_no_bytes_break_the_reader_or_reach_a_terminal(content):
    """Breaks when a log can crash the reader, move a cursor or hide a part of a line."""
    for line in diagnose_lines.lines("log", io.BytesIO(content)):
        assert line.text == plain(line.text) and "\n" not in line.text
        assert len(line.text) <= diagnose_lines.WIDTH and line.number >= 1


@given(CONTENT, st.lists(st.integers(0, 400), max_size=6))
def test_pieces_change_nothing(content, cuts):
    """Breaks when a line or a carriage return that falls on the edge of two reads is read otherwise."""
    edges = sorted({min(cut, len(content)) for cut in cuts} | {0, len(content)})
    pieces = [content[a:b] for a, b in itertools.pairwise(edges)]
    assert list(diagnose_lines.split(pieces)) == list(diagnose_lines.split([content]))


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1), max_size=8))
def test_line_ends_encodings_and_gzip_change_nothing(lines):
    """Breaks when a log from Windows, or one that was packed, is read otherwise."""
    text = "".join(f"x{line}\n" for line in lines)
    expected = texts(text.encode())
    for same in (
        text.replace("\n", "\r\n").encode(),
        text.replace("\n", "\r\r\n").encode(),
        text.encode("utf-8-sig"),
        text.encode("utf-16"),
        b"\xfe\xff" + text.encode("utf-16-be"),
        gzip.compress(text.encode()),
        gzip.compress(text[:3].encode()) + gzip.compress(text[3:].encode()),
    ):
        assert texts(same) == expected


@pytest.mark.parametrize("form", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_known_without_its_mark(form):
    """Breaks when what PowerShell's pipes leave is taken for rubbish."""
    text = "epoch 1: mémoire 99 %\nRuntimeError: CUDA out of memory 终\n"
    assert texts(text.encode(form)) == text.splitlines()
    assert len(texts(bytes(range(256)) * 99)) > 1, "zeros now and then are another thing"


def test_a_torn_gzip_member_gives_what_it_has():
    """Breaks when the log of a full disk can't be read at all."""
    packed = gzip.compress(b"".join(b"line %d of a log\n" % n for n in range(9999)), 1)
    results = texts(packed[: len(packed) // 2])
    assert len(results) > 1000 and results[0] == "line 0 of a log"


@pytest.mark.parametrize("piece", [b"x", b"Error: ", b"\x1b[", b"a.", b"\r 1%", b"\0"])
def test_a_huge_line_is_read_in_bounded_memory(piece):
    """Breaks when a line without an end, such as hours of a progress bar, or what is packed is held in memory."""
    content = piece * ((64 << 20) // len(piece))
    stream = io.BytesIO(gzip.compress(content) if piece == b"\0" else content)
    tracemalloc.start()
    [line] = diagnose_lines.lines("log", stream)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert len(line.text) <= diagnose_lines.WIDTH


PREFIXED = {
    "[rank12]:   File": ("  File", 12),
    "[default3]:RuntimeError: x": ("RuntimeError: x", 3),
    "[1,mpirank:2,algo-1]<stderr>:  File": ("  File", 2),
    "[1,3]<stdout>:x": ("x", 3),
    "0: Traceback": ("Traceback", 0),
    " 3:   File": ("  File", 3),
    "[2]: x": ("x", 2),
    "worker-0: [rank3]: x": ("x", 3),
    "10.1.2.3:     self.step()": ("    self.step()", None),
    "(WorkerDict pid=123, ip=1.2.3.4) x": ("x", None),
    "train-1  | x": ("x", None),
    "2025-04-02T10:11:12.345678Z stderr F [rank1]:   File": ("  File", 1),
    "[2025-04-02 10:11:12,345] [INFO] [engine.py:12:train] x": ("x", None),
    "2025-04-02 10:11:12,345 - ERROR - x": ("x", None),
    "E0402 10:11:12.345000 12345 torch/x/api.py:874] failed (exitcode: 1)": ("failed (exitcode: 1)", None),
    "[rank1]:[E125 12:00:00.1 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog": ("Watchdog", 1),
    "Nov 21 10:00:00 kernel: x": ("kernel: x", None),
    "> [rank0]: x": ("x", 0),
    "│ /usr/x.py:12 in train     │": ('  File "/usr/x.py", line 12, in train', None),
    "╭──── Traceback (most recent call last) ────╮": ("  Traceback (most recent call last)", None),
    # What only looks like a prefix stays.
    "RuntimeError: x": ("RuntimeError: x", None),
    "  rank      : 1 (local_rank: 1)": ("  rank      : 1 (local_rank: 1)", None),
    "[0]:": ("[0]:", None),
    "tensor([0]: 1)": ("tensor([0]: 1)", None),
}


@pytest.mark.parametrize("text", PREFIXED)
def test_prefixes_are_taken_off_and_name_the_rank(text):
    assert diagnose_lines.bare(text)[:2] == PREFIXED[text]


SHOWN = {
    "Erreur: mémoire\n".encode("latin-1"): ["Erreur: mémoire"],
    b"\r  0%|  | 0/3\r 50%|# | 1/3\r100%|##| 3/3Traceback\n": ["100%|##| 3/3Traceback"],  # what the bar showed last
    # Docker's logs, torchrun's error files, notebooks, a collector's JSON over several lines.
    b'{"log":"Traceback:\\n  File \\"x\\"\\nE: no\\n","stream":""}\n': ["Traceback:", '  File "x"', "E: no"],
    b'{"message": {"message": "x", "extraInfo": {"py_callstack": "Traceback:\\nE: no\\n"}}}\n': ["Traceback:", "E: no"],
    b'      "\\u001b[0;31mRuntimeError\\u001b[0m: Expected to\\nfinish",\n': ["RuntimeError: Expected to", "finish"],
    b'      "message": "RuntimeError: x",\n': ["RuntimeError: x"],
    b'{"loss": 0.1, "note": "an Error: x"}': ['{"loss": 0.1, "note": "an Error: x"}'],  # no record of a line
}


@pytest.mark.parametrize("content", SHOWN)
def test_a_line_is_what_somebody_saw(content):
    """Breaks when a log's own encoding, its progress bars or the JSON around it hide what a person read in it."""
    assert texts(content) == SHOWN[content]


def test_what_is_not_wanted_is_passed_over_and_still_counted():
    """Breaks when gigabytes of a healthy log are looked at closely, or line numbers stop being true."""
    random.seed(0)
    content = b"".join(random.choice([b"fine\n", b"\r\n", b"\n", b"an Error\n", b"x\rError\n"]) for _ in range(999))
    every = [line for line in diagnose_lines.split([content]) if b"Error" in line[1]]
    for size in (1, 7, 100, 10**6):
        pieces = (content[at : at + size] for at in range(0, len(content), size))
        assert list(diagnose_lines.split(pieces, lambda: re.compile(b"Error"))) == every
    coloured = b"\x1b[32mstep\x1b[0m 4\nan Er\x1b[1mror\n"
    assert texts(coloured, wanted=lambda: re.compile(b"Error")) == ["an Error"]


def test_records_of_log_collectors_name_their_time_and_their_writer():
    """Breaks when a cloud's log is read as one line of JSON, with all that comes behind the message."""
    record = b'{"insertId":"a","jsonPayload":{"message":"  File \\"x\\", line 1","rank":3},"severity":"ERROR",'
    record += b'"resource":{"labels":{"pod_name":"trainer-1"}},"timestamp":"2025-04-02T10:11:12.345Z"}\n'
    [line] = diagnose_lines.lines("log", io.BytesIO(record))
    assert line.text == '  File "x", line 1' and line.rank == 3 and line.stream == "trainer-1 rank 3"
    assert line.time == "2025-04-02T10:11:12.345Z" and line.dated


PATTERNS = sorted({*context.patterns(), signs.WHAT.pattern, signs.FRAME.pattern})


@pytest.mark.parametrize("pattern", PATTERNS)
def test_law_what_a_pattern_matches_has_one_of_its_words(pattern):
    """Breaks when a line that shows the failure is passed over, since no word of it is searched for."""

    @settings(max_examples=25)
    @given(st.from_regex(pattern))
    def law(text):
        assert re.search(needed([pattern]), text)

    law()


def test_the_longest_text_of_each_alternative_is_searched_for():
    """Breaks when a healthy log is searched for what is common in it, or for what needn't be there."""
    for pattern, words in {
        r"checkpoint(?:ing)?\.py\b": "checkpoint",
        r"\bprepare(?:_(?:model|data))?\([\w.]*[rR]ef": "prepare",
        r"(?:GKD|GOLD)(?:Config|Trainer)": "GKD|GOLD",
        r"[pP]eft|(?<!self)\.module\(": r"Peft|module\(|peft",
        r"un_?freez": "un_?freez",
        r"\(deep\|speed\)": r"deep\|speed\)",
        r"z\d{100}|step": r"z\d{100}|step",
    }.items():
        assert needed([pattern]) == words
