"""What grows from step to step. A step is found by the program's own loop: the outermost place where its stacks come back to a line
that they had left. Then it is asked what is live at the emptiest moment of each step, by the stack that made it.
"""
from collections import Counter, defaultdict
from itertools import accumulate

LEAST = 3  # rounds of a loop that are worth a word
MOST = 256  # rounds that are looked at; of more, evenly many
WARM_UP = 2  # the first rounds, in which state appears and caches fill
DEEPEST = 60


class Rounds:
    """Where each round of the loop begins (events), and the line that they come back to."""

    def __init__(self, starts, place, is_ours):
        self.starts, self.place, self.is_ours = starts, place, is_ours


def key_of(frame):
    return frame.file, frame.name, frame.line


def one_key_each(site):
    """The same, with one object for equal keys: two of them are compared millions of times."""
    seen = {}
    return {number: seen.setdefault(key, key) for number, key in site.items()}


def find_rounds(recording):
    """Rounds, or None where there is no loop, or where its rounds may be layers and not steps."""
    stacks = recording.stacks.all
    # Allocations in order: what frees is not on the program's own way.
    events = [(start, stack) for start, stack in zip(recording.start, recording.stack) if start >= 0]
    paths = [stack.path for stack in stacks]
    weights = Counter(stack for _, stack in events)
    roots = Counter()
    for number, count in weights.items():
        if paths[number]:
            roots[paths[number][0].file, paths[number][0].name] += count
    if not roots:
        return None
    root = roots.most_common(1)[0][0]
    inside = {n for n in weights if paths[n] and (paths[n][0].file, paths[n][0].name) == root}
    if stacks[next(iter(inside))].ours:
        inside = {n for n in weights if paths[n] and stacks[n].ours}
    for depth in range(DEEPEST):
        inside = {n for n in inside if len(paths[n]) > depth}
        if not inside:
            return None
        site = one_key_each({n: key_of(paths[n][depth]) for n in inside})
        runs, last, site_of = defaultdict(list), None, site.get
        for start, number in events:
            here = site_of(number)
            if here is not last and here is not None:
                runs[here].append(start)
                last = here
        found = best(runs, site, weights)
        if found is not None:
            any_path = next(n for n in inside if site[n] == found)
            if any(frame.is_call for frame in paths[any_path][:depth]):  # a loop within a Module is over its layers
                return None
            ours = stacks[any_path].ours
            way = paths[any_path][:depth + 1]
            frame = way[-1] if ours else next((f for f in reversed(way) if f.is_readers), way[-1])
            return Rounds(runs[found], frame.name if ours else frame.place(), ours)
        at = Counter()
        for number, here in site.items():
            at[here] += weights[number]
        here, count = at.most_common(1)[0]
        if count * 2 < sum(at.values()):
            return None
        inside = {n for n in inside if site[n] == here}
    return None


def best(runs, site, weights):
    """Of lines that come back at least three times, the first of those that come back as often as most of what is allocated."""
    events = Counter()
    for number, here in site.items():
        events[len(runs[here])] += weights[number]
    counts = [(weight, count) for count, weight in events.items() if count >= LEAST]
    if not counts:
        return None
    count = max(counts)[1]
    return min((here for here in runs if count <= len(runs[here]) <= count + 1), key=lambda here: runs[here][0])


class Growth:
    """What is live at the emptiest moment of each round: `floor` in all, `lines` (bytes a round, blocks in all, stack) of what grows,
    largest first. `per_round`: bytes a round of all that. `may_grow`(stack): whether it is a leak if what the stack makes grows. A loop that
    makes or loads layers grows in each of its rounds, too."""

    def __init__(self, recording, curve, peak, may_grow):
        self.rounds = find_rounds(recording)
        self.lines, self.per_round, self.floor, self.judged = [], 0, [], False
        if self.rounds is None:
            return
        # The last round may be cut off by the end, and what it holds then says nothing.
        starts = self.rounds.starts
        troughs = []
        for first, past in zip(starts, starts[1:]):
            part = curve[first:past + 1]
            troughs.append(first + part.index(min(part)) - 1)  # curve[k] is after event k - 1
        self.floor = [curve[k + 1] for k in troughs]
        # What is freed at the end of an epoch grows until then: the way up to the fullest round, since the last large fall.
        top = max(range(len(troughs)), key=lambda k: (self.floor[k], k))
        bottom = top
        while bottom > 0 and self.floor[bottom - 1] - self.floor[bottom] <= (self.floor[top] - self.floor[bottom]) / 2:
            bottom -= 1
        if top - bottom > LEAST:
            troughs = troughs[bottom:top + 1]
        troughs = troughs[min(WARM_UP, max(0, len(troughs) - LEAST)):]
        if len(troughs) < LEAST:
            return
        self.judged = True
        rounds = len(troughs) - 1
        if len(troughs) > MOST:
            troughs = [troughs[rounds * k // (MOST - 1)] for k in range(MOST)]
        series = self.by_stack(recording, troughs)
        for stack, (figures, blocks) in series.items():
            if not may_grow(stack):
                continue
            rises = sum(b > a for a, b in zip(figures, figures[1:]))
            falls = sum(b < a for a, b in zip(figures, figures[1:]))
            grown = figures[-1] - figures[0]
            # More rises than falls by far: a loss is kept in each step, a result perhaps in every second one.
            if grown > 0 and rises >= 2 and falls * 4 <= rises and rises * 3 >= len(figures) - 1 and 2 * grown > max(figures):
                self.lines.append((grown / rounds, blocks, stack))
        self.lines.sort(reverse=True)
        self.per_round = sum(line[0] for line in self.lines)
        total = [curve[k + 1] for k in troughs]
        # What one line makes more and another less does not grow; and a thousandth of the peak is nobody's trouble.
        if total[-1] - total[0] < max(self.per_round * rounds / 2, peak / 1000):
            self.lines, self.per_round = [], 0

    @staticmethod
    def by_stack(recording, troughs):
        """Live bytes at each of the troughs, and how many blocks came between the first and the last of them."""
        change, blocks = {}, Counter()
        before = [0] * (recording.events + 2)  # how many troughs lie before an event
        for event in troughs:
            before[event + 1] += 1
        before = list(accumulate(before))
        for start, end, size, stack in zip(recording.start, recording.end, recording.size, recording.stack):
            first, past = before[start] if start > 0 else before[0], before[end]
            if first < past:
                row = change.setdefault(stack, [0] * (len(troughs) + 1))
                row[first] += size
                row[past] -= size
                blocks[stack] += 0 < first
        result = {}
        for stack, row in change.items():
            live, figures = 0, []
            for difference in row[:-1]:
                live += difference
                figures.append(live)
            result[stack] = (figures, blocks[stack])
        return result
