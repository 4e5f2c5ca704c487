"""Counts the steps that a backtracking engine takes for a pattern on a text, as Python's does; no clock is asked."""

import math
from re import _compiler as compiler
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
        self.groups, self.known = {}, {}

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
        if op in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN, c.AT):
            key = (op, id(argument))
            self.known[key] = known = self.known.get(key) or alone(op, argument, self.tree.state)
            if fits := known.match(self.text, at):
                yield fits.end()
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


def alone(op, argument, state):
    """The pattern of one node that stands for a letter or a place."""
    return compiler.compile(parser.SubPattern(state, [(op, argument)]), state.flags)


def example(nodes, optional):
    """A short text that a sequence of nodes matches, with what is `optional` or without, but for what looks around."""
    text = ""
    for op, argument in nodes:
        if op is c.LITERAL:
            text += chr(argument)
        elif op is c.IN:
            letters = "a1 \n\tA._-/<\"':=,;#\\\x1b[{(x0Z%│é"
            text += next(filter(alone(op, argument, parser.parse("").state).match, letters), "")
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
