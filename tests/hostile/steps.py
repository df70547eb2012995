"""How many steps a regular expression takes, counted by a matcher that goes back and tries again as Python's does.

A time would depend on the machine; steps do not. On a text that is twice as long a pattern may take twice as many. A repetition
with an end counts as one of at most FEW, whatever its end is: an end is what keeps it from growing.
"""
import random
import re

try:
    from re import _constants as c
    from re import _parser as parser
except ImportError:  # before Python 3.11
    import sre_constants as c
    import sre_parse as parser

FEW = 6
IN_CLASS = {c.CATEGORY_DIGIT: str.isdigit, c.CATEGORY_SPACE: str.isspace, c.CATEGORY_WORD: lambda x: x.isalnum() or x == "_"}
NOT_IN_CLASS = {c.CATEGORY_NOT_DIGIT: c.CATEGORY_DIGIT, c.CATEGORY_NOT_SPACE: c.CATEGORY_SPACE,
                c.CATEGORY_NOT_WORD: c.CATEGORY_WORD}
REPEATS = {c.MAX_REPEAT, c.MIN_REPEAT, getattr(c, "POSSESSIVE_REPEAT", c.MAX_REPEAT)}


def of_class(category, x):
    return not IN_CLASS[NOT_IN_CLASS[category]](x) if category in NOT_IN_CLASS else IN_CLASS[category](x)


IGNORE_CASE, MULTILINE, DOTALL = int(re.I), int(re.M), int(re.S)


def matches(op, argument, x, flags):
    """Whether a node that stands for one character stands for this one."""
    if flags & IGNORE_CASE and op in (c.LITERAL, c.NOT_LITERAL):
        x, argument = x.lower(), ord(chr(argument).lower())
    if op is c.LITERAL:
        return ord(x) == argument
    if op is c.NOT_LITERAL:
        return ord(x) != argument
    if op is c.ANY:
        return x != "\n" or bool(flags & DOTALL)
    negated, found = False, False
    for kind, value in argument:
        if kind is c.NEGATE:
            negated = True
        elif kind is c.CATEGORY:
            found |= of_class(value, x)
        else:
            low, high = (value, value) if kind is c.LITERAL else value
            found |= any(low <= ord(y) <= high for y in ({x.lower(), x.upper()} if flags & IGNORE_CASE else {x}) if len(y) == 1)
    return found != negated


ONE = (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN)


def plain(nodes):
    """The parser's tree as lists of (what it is, its argument), a lookbehind with its width."""
    result = []
    for op, argument in nodes:
        if op is c.SUBPATTERN:
            argument = (*argument[:3], plain(argument[3]))
        elif op is c.BRANCH:
            argument = [plain(branch) for branch in argument[1]]
        elif op in REPEATS:
            argument = (*argument[:2], plain(argument[2]))
        elif op in (c.ASSERT, c.ASSERT_NOT):
            argument = (argument[1].getwidth()[0] if argument[0] < 0 else 0, plain(argument[1]))
        result.append((op, argument))
    return result


class TooMany(Exception):
    pass


class Steps:
    """Counts the steps of a pattern."""

    def __init__(self, pattern, flags=0):
        parsed = parser.parse(pattern, flags)
        self.flags = int(flags | parsed.state.flags)  # the operators of flags of Python's take long
        self.tree = plain(parsed)
        self.count, self.most, self._known = 0, 0, {}

    def of(self, text, most=10**7):
        """The steps until every match in the text has been found, as finditer() and sub() find them; TooMany beyond `most`."""
        self.text, self.count, self.most, at = text, 0, most, 0
        begins = chr(self.tree[0][1]) if self.tree and self.tree[0][0] is c.LITERAL and not self.flags & IGNORE_CASE else None
        while at <= len(text):
            if begins and not text.startswith(begins, at):
                self.count, at = self.count + 1, at + 1
                continue
            end = self._at(self.tree, 0, at, self.flags, lambda i: i)
            at = at + 1 if end is None or end == at else end
        return self.count

    def _step(self):
        self.count += 1
        if self.count > self.most:
            raise TooMany

    def _fits(self, op, argument, x, flags):
        key = (id(argument) if op is c.IN else argument, op, x, flags)
        if key not in self._known:
            self._known[key] = matches(op, argument, x, flags)
        return self._known[key]

    def _at(self, nodes, k, i, flags, then):
        """Matches nodes[k:] at i, and then `then`; what `then` says, None where nothing fits."""
        text = self.text
        while k < len(nodes):
            self._step()
            op, argument = nodes[k]
            if op in ONE:
                if i >= len(text) or not self._fits(op, argument, text[i], flags):
                    return None
                i, k = i + 1, k + 1
            elif op is c.AT:
                if not self._place(argument, i, flags):
                    return None
                k += 1
            elif op in (c.ASSERT, c.ASSERT_NOT):
                back, inner = argument
                found = i >= back and self._at(inner, 0, i - back, flags, lambda j: j) is not None
                if found != (op is c.ASSERT):
                    return None
                k += 1
            elif op is c.SUBPATTERN:
                _, add, remove, inner = argument
                inner_flags = (flags | add) & ~remove
                return self._at(inner, 0, i, inner_flags, lambda j: self._at(nodes, k + 1, j, flags, then))
            elif op is c.BRANCH:
                for branch in argument:
                    end = self._at(branch, 0, i, flags, lambda j: self._at(nodes, k + 1, j, flags, then))
                    if end is not None:
                        return end
                return None
            elif op in REPEATS:
                return self._repeat(op, argument, nodes, k, i, flags, then)
            else:
                raise ValueError(f"not known here: {op}")
        return then(i)

    def _place(self, where, i, flags):
        text = self.text
        if where in (c.AT_BOUNDARY, c.AT_NON_BOUNDARY):
            word = [0 <= j < len(text) and of_class(c.CATEGORY_WORD, text[j]) for j in (i - 1, i)]
            return (word[0] != word[1]) == (where is c.AT_BOUNDARY)
        if where in (c.AT_BEGINNING, c.AT_BEGINNING_LINE):
            return i == 0 or bool(flags & MULTILINE) and text[i - 1] == "\n"
        if where in (c.AT_END, c.AT_END_LINE):
            return i == len(text) or text[i] == "\n" and (bool(flags & MULTILINE) or i == len(text) - 1)
        return i == (0 if where is c.AT_BEGINNING_STRING else len(text))

    def _repeat(self, op, argument, nodes, k, i, flags, then):
        low, high, inner = argument
        high = len(self.text) + 1 if high is c.MAXREPEAT else max(low, min(high, FEW))
        rest = lambda j: self._at(nodes, k + 1, j, flags, then)
        if len(inner) == 1 and inner[0][0] in ONE:
            n = 0
            if op is c.MIN_REPEAT:
                while True:
                    end = rest(i + n) if n >= low else None
                    if end is not None:
                        return end
                    self._step()
                    if n >= high or i + n >= len(self.text) or not self._fits(*inner[0], self.text[i + n], flags):
                        return None
                    n += 1
            while n < high and i + n < len(self.text) and self._fits(*inner[0], self.text[i + n], flags):
                self._step()
                n += 1
            for m in range(n, low - 1, -1):
                end = rest(i + m)
                if end is not None:
                    return end
            return None

        def again(n, j):
            def more():
                return self._at(inner, 0, j, flags, lambda e: again(n + 1, e) if e > j or n < low else None) if n < high else None
            first, second = (rest, lambda _: more()) if op is c.MIN_REPEAT else (lambda _: more(), rest)
            if n < low:
                return more()
            end = first(j)
            return second(j) if end is None else end
        return again(0, i)


LETTERS = "1 a.,-(#x)[]\\'\"\n:|_%/\u00a0Z"


def example(rng, nodes, flags, letters, said, borders):
    """Adds a text to `said` that the nodes match, without regard to what they assert, and to `borders` where repetitions begin and
    end."""
    for op, argument in nodes:
        if op is c.LITERAL:
            said.append(chr(argument))
        elif op in ONE:
            said.append(next((x for x in rng.sample(letters, len(letters)) if matches(op, argument, x, flags)), "\u4e2d"))
        elif op is c.SUBPATTERN:
            example(rng, argument[3], flags, letters, said, borders)
        elif op is c.BRANCH:
            example(rng, rng.choice(argument), flags, letters, said, borders)
        elif op in REPEATS:
            low, high, inner = argument
            borders.append(len(said))
            for _ in range(rng.randint(low, min(low + 2, high))):
                example(rng, inner, flags, letters, said, borders)
            borders.append(len(said))


def pumped(rng, steps):
    """A function that makes a text of about n characters of the pattern's own pieces, some of them again and again."""
    letters = LETTERS + "".join(sorted({chr(a) for op, a in steps.tree if op is c.LITERAL}))
    said, borders = [], []
    example(rng, steps.tree, steps.flags, letters, said, borders)
    word = "".join(said) or "x"
    places = [0, *borders] if rng.random() < 0.7 else range(len(word) + 1)
    begin, end = sorted((rng.choice([0, rng.choice(places)]), rng.choice(places)))
    begin, end = (begin, end) if end > begin else (0, len(word))
    last = rng.choice(["", "\0", " \0", "\n\0", word])
    return lambda n: word[:begin] + word[begin:end] * (n // (end - begin) + 1) + last


def alternatives(nodes):
    """How many ways of going on the nodes have."""
    count = 0
    for op, argument in nodes:
        inside = argument if op is c.BRANCH else [argument[-1]] if op in (c.SUBPATTERN, c.ASSERT, c.ASSERT_NOT, *REPEATS) else []
        count += sum(map(alternatives, inside)) + (len(argument) if op is c.BRANCH else 0)
    return count


def repeats_without_end(nodes):
    """Whether a repetition of the nodes has no end. Where each has one, the steps from one place of the text have a bound that the
    text has no part in, so that all of them together grow as the text does."""
    for op, argument in nodes:
        inside = argument if op is c.BRANCH else [argument[-1]] if op in (c.SUBPATTERN, c.ASSERT, c.ASSERT_NOT, *REPEATS) else []
        if op in REPEATS and argument[1] is c.MAXREPEAT or any(map(repeats_without_end, inside)):
            return True
    return False


def grows(pattern, flags=0, tries=12, seed=1, length=200):
    """A text on which the pattern's steps grow faster than the text does, or None."""
    rng, steps = random.Random(f"{seed} {pattern!r}"), Steps(pattern, flags)
    if not repeats_without_end(steps.tree):
        return None
    for _ in range(tries * (1 + alternatives(steps.tree) // 4)):
        make, once = pumped(rng, steps), None
        try:
            once = steps.of(make(length), most=3 * 10**4)
            steps.of(make(2 * length), most=int(2.4 * once) + 150)
        except TooMany:
            return make(60)
    return None
