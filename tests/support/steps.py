"""Counts the steps that a backtracking engine takes for a pattern on a text, as Python's does; no clock is asked."""

import math
import re
from re import _constants as c
from re import _parser as parser

UNITS = 16  # times that a part of a pattern is repeated at first
TIMES = 3.0  # that twice as long a text may take as many steps
ENOUGH = 400_000  # steps at which counting ends


class Enough(Exception):
    pass


class Counter:
    """One pattern on one text: `steps` is what a search for all of its matches took."""

    def __init__(self, pattern, flags, text):
        self.tree = parser.parse(pattern, flags)
        self.text, self.steps = text, 0
        self.dotall = bool(self.tree.state.flags & re.DOTALL)
        self.multiline = bool(self.tree.state.flags & re.MULTILINE)
        self.ignorecase = bool(self.tree.state.flags & re.IGNORECASE)
        self.groups = {}

    def search_all(self, anchored=False):
        at = 0
        try:
            while at <= (0 if anchored else len(self.text)):
                end = next(self.match(list(self.tree), 0, at), None)
                at = at + 1 if end is None else max(end, at + 1)
        except Enough:
            pass
        return self.steps

    def match(self, nodes, index, at):
        """The places at which what begins at a node may end, in the order of an engine that backtracks."""
        self.steps += 1
        if self.steps > ENOUGH:
            raise Enough
        if index == len(nodes):
            yield at
            return
        op, argument = nodes[index]
        for end in self.one(op, argument, at):
            yield from self.match(nodes, index + 1, end)

    def one(self, op, argument, at):
        if op in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            if at < len(self.text) and self.fits(op, argument, self.text[at]):
                yield at + 1
        elif op is c.BRANCH:
            for branch in argument[1]:
                yield from self.match(list(branch), 0, at)
        elif op is c.SUBPATTERN:
            for end in self.match(list(argument[3]), 0, at):
                self.groups[argument[0]] = self.text[at:end]
                yield end
        elif op in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            ends = self.repeat(list(argument[2]), argument[0], argument[1], op is c.MIN_REPEAT, at, 0)
            yield from [end] if op is c.POSSESSIVE_REPEAT and (end := next(ends, None)) is not None else ends
        elif op is c.ATOMIC_GROUP:
            yield from [end] if (end := next(self.match(list(argument), 0, at), None)) is not None else []
        elif op in (c.ASSERT, c.ASSERT_NOT):
            start = at if argument[0] > 0 else at - argument[1].getwidth()[0]
            matches = start >= 0 and next(self.match(list(argument[1]), 0, start), None) is not None
            if matches == (op is c.ASSERT):
                yield at
        elif op is c.GROUPREF:
            text = self.groups.get(argument, "")
            if self.text.startswith(text, at):
                yield at + len(text)
        elif op is c.AT:
            if self.stands(argument, at):
                yield at
        else:
            raise NotImplementedError(op)

    def repeat(self, nodes, least, most, lazy, at, done):
        if lazy and done >= least:
            yield at
        if most is c.MAXREPEAT or done < most:
            for end in self.match(nodes, 0, at):
                if end > at or done < least:
                    yield from self.repeat(nodes, least, most, lazy, end, done + 1)
        if not lazy and done >= least:
            yield at

    def fits(self, op, argument, letter):
        if op is c.ANY:
            return self.dotall or letter != "\n"
        if op is c.LITERAL:
            return letter in both(chr(argument)) if self.ignorecase else letter == chr(argument)
        if op is c.NOT_LITERAL:
            return letter != chr(argument)
        negate = argument[0][0] is c.NEGATE
        letters = both(letter) if self.ignorecase else letter
        return negate != any(contains(each, one) for each in argument[negate:] for one in letters)

    def stands(self, where, at):
        before, after = self.text[at - 1 : at], self.text[at : at + 1]
        if where in (c.AT_BOUNDARY, c.AT_NON_BOUNDARY):
            word = [bool(re.match(r"\w", each)) for each in (before, after)]
            return (word[0] != word[1]) == (where is c.AT_BOUNDARY)
        if where in (c.AT_BEGINNING, c.AT_BEGINNING_STRING):
            return not at or (where is c.AT_BEGINNING and self.multiline and before == "\n")
        if where is c.AT_END:
            return not after or (after == "\n" and (self.multiline or at + 1 == len(self.text)))
        return not after


def both(letter):
    return letter.lower() + letter.upper()


CATEGORY = {c.CATEGORY_DIGIT: r"\d", c.CATEGORY_SPACE: r"\s", c.CATEGORY_WORD: r"\w"}
CATEGORY |= {c.CATEGORY_NOT_DIGIT: r"\D", c.CATEGORY_NOT_SPACE: r"\S", c.CATEGORY_NOT_WORD: r"\W"}


def contains(item, letter):
    op, argument = item
    if op is c.LITERAL:
        return ord(letter) == argument
    if op is c.RANGE:
        return argument[0] <= ord(letter) <= argument[1]
    return bool(re.match(CATEGORY[argument], letter))


def example(nodes, optional):
    """A short text that a sequence of nodes matches, with what is `optional` or without, but for what looks around."""
    text = ""
    for op, argument in nodes:
        if op is c.LITERAL:
            text += chr(argument)
        elif op is c.IN:
            letters = "a1 \n\tA._-/<\"':=,;#\\\x1b[{(x0Z%│é"
            text += next((each for each in letters if Counter("", 0, "").fits(op, argument, each)), "")
        elif op in (c.ANY, c.NOT_LITERAL):
            text += "a" if argument != ord("a") else "b"
        elif op is c.BRANCH:
            text += example(argument[1][0], optional)
        elif op is c.SUBPATTERN:
            text += example(argument[3], optional)
        elif op in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            text += example(argument[2], optional) * max(argument[0], optional)
        elif op is c.ATOMIC_GROUP:
            text += example(argument, optional)
    return text


def hostile(nodes, optional, before=""):
    """Texts that repeat each part of a pattern which may be repeated: what comes before it, and what is repeated."""
    for op, argument in nodes:
        if op in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT) and argument[1] > 100:
            unit = example(argument[2], optional)
            for each in {unit, unit.replace(" ", "\n")}:
                yield before, each
                yield "", before + each
            yield from hostile(argument[2], optional, before)
        elif op is c.BRANCH:
            for branch in argument[1]:
                yield from hostile(branch, optional, before)
        elif op is c.SUBPATTERN:
            yield from hostile(argument[3], optional, before)
        elif op is c.ATOMIC_GROUP:
            yield from hostile(argument, optional, before)
        before += example([(op, argument)], optional)


def growth(pattern, flags=0, anchored=False):
    """The most times as many steps that a pattern takes for a hostile text of twice the length, and that text."""
    worst = (0.0, "")
    tree = parser.parse(pattern, flags)
    for before, unit in {each for optional in (0, 1) for each in hostile(tree, optional) if each[1]}:
        for end in ("", "\0"):
            texts = [before + unit * (UNITS << twice) + end for twice in (0, 1, 2)]
            steps = [Counter(pattern, flags, text).search_all(anchored) for text in texts]
            times = math.inf if steps[2] > ENOUGH else max(steps[1] / steps[0], steps[2] / steps[1])
            worst = max(worst, (times, texts[0]))
    return worst
