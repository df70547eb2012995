"""What grows from step to step. A step is found by the program's own loop: the outermost place where its stacks come back to a line
that they had left. Then it is asked what is live at the emptiest moment of each step, by the stack that made it.
"""
from array import array
from collections import Counter, defaultdict

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


def find_rounds(recording):
    """Rounds, or None where there is no loop, or where its rounds may be layers and not steps."""
    stacks = recording.stacks.all
    # Allocations in order: what frees is not on the program's own way.
    order = sorted((i for i in range(len(recording.start)) if recording.start[i] >= 0), key=recording.start.__getitem__)
    paths = [stack.path for stack in stacks]
    stack_of = [recording.stack[i] for i in order]
    weights = Counter(stack_of)
    has_backward = any(s in ("backward", "accumulate", "optimizer", "optimizer_state") for number in weights for s in stacks[number].signs)
    has_backward = has_backward or any(not stacks[number].frames for number in weights) or any(stacks[n].ours for n in weights)
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
        site = {n: key_of(paths[n][depth]) for n in inside}
        runs, last = defaultdict(list), None
        for i, number in zip(order, stack_of):
            here = site.get(number)
            if here is not None and here != last:
                runs[here].append(recording.start[i])
                last = here
        found = best(runs, site, weights)
        if found is not None:
            any_path = next(n for n in inside if site[n] == found)
            if not has_backward and any(frame.is_call for frame in paths[any_path][:depth]):
                return None
            ours = stacks[any_path].ours
            way = paths[any_path][:depth + 1]
            frame = way[-1] if ours else next((f for f in reversed(way) if f.is_readers), way[-1])
            return Rounds(runs[found], frame.name if ours else frame.place(), ours)
        events = Counter()
        for number, here in site.items():
            events[here] += weights[number]
        here, count = events.most_common(1)[0]
        if count * 2 < sum(events.values()):
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
            troughs.append(min(range(first, past + 1), key=lambda k: curve[k]) - 1)  # curve[k] is after event k - 1
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
        before = array("l", bytes(array("l").itemsize * (recording.events + 2)))  # how many troughs lie before an event
        for event in troughs:
            before[event + 1] += 1
        for event in range(1, len(before)):
            before[event] += before[event - 1]
        for i, (start, end) in enumerate(zip(recording.start, recording.end)):
            first, past = before[max(0, start)], before[end]
            if first < past:
                row = change.setdefault(recording.stack[i], [0] * (len(troughs) + 1))
                row[first] += recording.size[i]
                row[past] -= recording.size[i]
                blocks[recording.stack[i]] += 0 < first
        result = {}
        for stack, row in change.items():
            live, figures = 0, []
            for difference in row[:-1]:
                live += difference
                figures.append(live)
            result[stack] = (figures, blocks[stack])
        return result
