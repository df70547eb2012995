"""What PyTorch's caching allocator would do with the same requests under another setting: its published rules, replayed.

The rules of common/plan/allocator/policies.h, for who has Python only, and max_split_size_mb, which is not among those; where both
have a rule, a test holds the two equal. Said of every figure from here: it is by replay, not measured.
"""
from bisect import bisect_left, insort

KIB, MIB = 1 << 10, 1 << 20
ADDRESSES = 1 << 44  # of an expandable segment


def up(size, step):
    return (size + step - 1) // step * step


def segment_bytes(size):
    """What is taken from the driver for a request, where no segment is expandable."""
    return 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else up(size, 2 * MIB)


class Block:
    __slots__ = ("size", "place", "state", "before", "next", "segment")

    def __init__(self, size, place, state, segment, before=None, next=None):
        self.size, self.place, self.state, self.segment, self.before, self.next = size, place, state, segment, before, next


class Segment:
    __slots__ = ("pool", "page", "first", "base")

    def __init__(self, pool, page, base):
        self.pool, self.page, self.base = pool, page, base


class Pool:
    """The free blocks of a stream, small or large, by size and then by address."""

    def __init__(self, small):
        self.small, self.free, self.blocks, self.segments = small, [], {}, {}

    def add(self, block):
        insort(self.free, (block.size, block.place))
        self.blocks[block.place] = block

    def remove(self, block):
        del self.free[bisect_left(self.free, (block.size, block.place))]
        del self.blocks[block.place]


class Allocator:
    """`budget`: bytes that it may hold. `max_split`: bytes, None for none."""

    def __init__(self, budget, expandable=False, max_split=None):
        self.budget, self.expandable, self.max_split = budget, expandable, max_split
        self.pools, self.live = {}, {}
        self.reserved = self.most = 0
        self.next_place = 0

    def take(self, size):
        if self.reserved + size > self.budget:
            return False
        self.reserved += size
        self.most = max(self.most, self.reserved)
        return True

    def allocate(self, number, asked, stream):
        """False: out of memory."""
        size = max(512, up(asked, 512))
        small = size <= MIB
        pool = self.pools.get((stream, small))
        if pool is None:
            pool = self.pools[stream, small] = Pool(small)
        block = self.find(pool, size) or self.grow(pool, size)
        if block is None:
            self.release_cached()
            block = self.grow(pool, size)
            if block is None:
                return False
        pool.remove(block)
        rest = block.size - size
        if rest >= 512 if self.expandable or small else rest > MIB and not (self.max_split and size >= self.max_split):
            other = Block(rest, block.place + size, "free", block.segment, block, block.next)
            if block.next:
                block.next.before = other
            block.next = other
            block.size = size
            pool.add(other)
        block.state = "used"
        self.live[number] = block
        return True

    def give_back(self, number):
        block = self.live.pop(number)
        block.state = "free"
        self.merge(block)

    def merge(self, block):
        """What is free beside a block that has just become free grows together with it. Returns the block that there is then."""
        pool = block.segment.pool
        after = block.next
        if after and after.state == "free":
            pool.remove(after)
            self.swallow(block, after)
        before = block.before
        if before and before.state == "free":
            pool.remove(before)
            self.swallow(before, block)
            block = before
        pool.add(block)
        return block

    @staticmethod
    def swallow(block, after):
        block.size += after.size
        block.next = after.next
        if after.next:
            after.next.before = block

    def find(self, pool, size):
        free = pool.free
        place = bisect_left(free, (size, 0))
        if place == len(free):
            return None
        if self.expandable:  # a block that can still grow is worth as much as it can grow to
            best = pool.blocks[free[place][1]]
            for entry in free[place + 1:]:
                other = pool.blocks[entry[1]]
                if self.can_become(other) >= self.can_become(best):
                    break
                best = other
            return best
        if self.max_split and not pool.small:
            if size < self.max_split <= free[place][0]:
                return None
            if size >= self.max_split and free[place][0] >= size + 20 * MIB:
                return None
        return pool.blocks[free[place][1]]

    @staticmethod
    def can_become(block):
        after = block.next
        return block.size + (after.size if after and after.state == "unmapped" else 0)

    def grow(self, pool, size):
        if self.expandable:
            return self.expand(pool, size)
        length = segment_bytes(size)
        if not self.take(length):
            return None
        segment = Segment(pool, 0, self.next_place)
        block = segment.first = Block(length, self.next_place, "free", segment)
        pool.segments[self.next_place] = segment
        self.next_place += length
        pool.add(block)
        return block

    def expand(self, pool, size):
        """The first place, by address, where free and unmapped blocks in a row are large enough; then pages, left to right."""
        if not pool.segments:
            segment = Segment(pool, 2 * MIB if pool.small else 20 * MIB, self.next_place)
            segment.first = Block(ADDRESSES, self.next_place, "unmapped", segment)
            pool.segments[self.next_place] = segment
            self.next_place += ADDRESSES
        block = next(iter(pool.segments.values())).first
        while block:
            if block.state == "unmapped":
                start = block.before if block.before and block.before.state == "free" else block
                room, other = 0, start
                while other and other.state != "used" and room < size:
                    room, other = room + other.size, other.next
                if room >= size:
                    return self.map_from(start, size)
            block = block.next
        return None

    def map_from(self, block, size):
        if block.state == "unmapped":
            block = self.map(block, min(size, block.size))
        while block and block.size < size:
            block = self.map(block.next, min(size - block.size, block.next.size))
        return block

    def map(self, block, size):
        """Maps pages at the front of an unmapped block, which become free, and part of their neighbours; None where there are none."""
        length = min(block.size, up(size, block.segment.page))
        if not self.take(length):
            return None
        if length < block.size:
            rest = Block(block.size - length, block.place + length, "unmapped", block.segment, block, block.next)
            if block.next:
                block.next.before = rest
            block.next = rest
            block.size = length
        block.state = "free"
        return self.merge(block)

    def release_cached(self):
        for pool in self.pools.values():
            for base, segment in list(pool.segments.items()):
                first = segment.first
                if self.expandable:
                    self.unmap_free_pages(segment)
                elif first.state == "free" and first.next is None:
                    self.reserved -= first.size
                    pool.remove(first)
                    del pool.segments[base]

    def unmap_free_pages(self, segment):
        pool, base, page = segment.pool, segment.base, segment.page
        block = segment.first
        while block:
            first, last = up(block.place - base, page) + base, (block.place + block.size - base) // page * page + base
            if block.state == "free" and first < last:
                pool.remove(block)
                if first > block.place:
                    front = Block(first - block.place, block.place, "free", segment, block.before, block)
                    if block.before:
                        block.before.next = front
                    else:
                        segment.first = front
                    block.before = front
                    pool.add(front)
                end = block.place + block.size
                block.place, block.size, block.state = first, last - first, "unmapped"
                self.reserved -= block.size
                if end > last:
                    back = Block(end - last, last, "free", segment, block, block.next)
                    if block.next:
                        block.next.before = back
                    block.next = back
                    pool.add(back)
            block = block.next
        block = segment.first
        while block and block.next:
            if block.state == "unmapped" and block.next.state == "unmapped":
                self.swallow(block, block.next)
            else:
                block = block.next


def replay(events, budget, expandable=False, max_split=None):
    """(index of the event that is refused, None where all are served; bytes held at most). Events: (number, bytes, stream), or
    (number, 0, 0) for its release."""
    allocator = Allocator(budget, expandable, max_split)
    for index, (number, size, stream) in enumerate(events):
        if size == 0:
            allocator.give_back(number)
        elif not allocator.allocate(number, size, stream):
            return index, allocator.most
    return None, allocator.most
