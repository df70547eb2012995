"""An explained message: its cause, what to do first, and below them its arithmetic and all the rest, in one language. For bench/explain."""

import functools
import pathlib
import re

from shared import terminal

from .advice import advice
from .causes import causes, others_known
from .figures import GIB, UNIT_NAMES, Account, diagnose
from .first import SERVERS, chapters, first, serves
from .first_words import FIRST
from .layout import columns, pad, wrapped
from .words import LANGUAGES, framework_name, say

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXTRA = ("within", "resident", "weights", "program", "arguments", "outputs", "temporaries", "other_allocations", "tokens_wanted", "tokens_held")
LINES = 12  # of the answer, at most
UNITS = {name: unit for unit, name in UNIT_NAMES.items()}
# Sentences that are certain, although the figures support none of the causes.
SURE = {"why_nvml", "why_dispatched", "why_unified", "why_compute_buffer", "why_compute_unsaid", "why_weights_buffer", "why_whole_model", "why_component_unsaid",
        "why_cut_off", "why_cut_off_asked", "why_buffer", "why_copy", "why_builder"}
# Causes in a word, where a sentence knows more than the diagnosis, or less.
TITLES = {"why_free": "title_unsaid", "why_some": "title_unsaid", "why_card_free": "title_unsaid", "why_killed_mac": "title_likely_host", "why_killed": "title_likely_host",
          "why_killed_on_card": "title_likely_host", "why_worker_gone": "title_likely_host", "why_shared_bus": "title_likely_host", "why_too_big_program": "title_program",
          "why_program_size": "title_program_free", "why_program_size_temporaries": "title_program_free", "why_program_parts": "title_program_free",
          "why_program_parts_temporaries": "title_program_free", "why_program_free": "title_program_free", "why_live_any": "title_chip", "why_too_big_limit": "title_buffer",
          "why_buffer_mps": "title_buffer", "why_one_request": "title_one_request", "why_others_outside": "title_likely_others", "why_unbalanced": "title_likely_others",
          "why_addresses": "title_addresses", "why_limit_mps": "title_mps", "why_pool_took_all": "title_pool", "why_workspace": "title_workspace",
          "why_weights_and_buffer": "title_weights", "why_same_device": "title_ranks", "why_live_arrays": "title_arrays", "why_live_paddle": "title_paddle"}
MUCH_OUTSIDE = GIB  # that a process holds outside the framework: more than a context takes


class Explanation:
    """A found message, its account and diagnosis, what stands around it, and the texts in one language."""

    def __init__(self, found, language):
        self.found, self.language = found, language
        self.account = Account(found.message)
        self.context = found.context
        self.diagnosis = diagnose(self.account)
        if self.diagnosis == "not_enough_information" and not self.account.sizes and self.context.call == "pinned":
            self.diagnosis = "host_memory"  # the call asks for the host's pages, whoever's error it ends with
        self.values = {name: self.shown(size) for name, size in self.account.sizes.items()}
        for name in ("tokens_wanted", "tokens_held"):
            if name in self.values:
                self.values[name] = f"{self.account.sizes[name].whole():,}"

    def say(self, key, **values):
        text = say(key, self.language, **{**self.found.message.values, **self.values, **values})
        return text.replace(" 约 ", "约 ")

    def shown(self, size):
        text = size.text() if self.language == "en" else size.text().replace("bytes", "字节")
        return say("about", self.language, size=text) if size.is_rough() and size.half else text

    def shown_alike(self, **sizes):
        """The same of several that are added up: in one unit, with the decimals that are certain in it, where there are any."""
        unit = min(UNITS[size.text().split()[1]] for size in sizes.values())
        decimals = {name: 2 if size.half * 200 <= unit else 1 if size.half * 20 <= unit else 0 for name, size in sizes.items()}
        if unit == 1 or any(size.bytes >= 100000 * unit for size in sizes.values()):
            return {name: self.shown(size) for name, size in sizes.items()}
        in_unit = {name: f"{float(size.bytes / unit):.{decimals[name]}f} {UNIT_NAMES[unit]}" for name, size in sizes.items()}
        return {name: text if size.half * 2 <= unit else say("about", self.language, size=text) for (name, text), size in zip(in_unit.items(), sizes.values())}

    def ranks(self):
        """Those that fail, as a text."""
        numbers = [str(rank) for rank in sorted(self.context.ranks)]
        if len(numbers) > 8:
            return ", ".join(numbers[:8]) + ", ..."
        last = " and " if self.language == "en" else " 和 "
        return last.join(filter(None, ((", " if self.language == "en" else "、").join(numbers[:-1]), *numbers[-1:])))

    def json(self):
        return {"diagnosis": self.diagnosis, **self.account.json()}

    def known(self, *names):
        return all(name in self.account.sizes for name in names)

    def missing(self, first_name, *others):
        """The first - the others, None where something is not known or nothing is missing."""
        if not self.known(first_name, *others):
            return None
        rest = self.account.sizes[first_name]
        for name in others:
            rest = rest - self.account.sizes[name] if rest else None
        return rest if rest and rest.bytes > 0 else None

    def short_of(self):
        """What is missing of what was asked for, whether or not the message says what is cached; None where that is not known."""
        return self.missing("asked", "free", *(["cached"] if "cached" in self.account.sizes else []))

    def percent(self):
        """How much of what it needs does not fit, in percent; None where that is not known."""
        short = self.short_of()
        if not short or not self.known("allocated"):
            return None
        return float(short.bytes * 100 / (self.account.sizes["allocated"].bytes + self.account.sizes["asked"].bytes))

    def is_small(self):
        """Whether so little was asked for that it says nothing of the requests that would have followed it: a fiftieth of the card, or a
        twentieth where more than half of the request is missing."""
        sizes = self.account.sizes
        if not self.known("asked", "capacity"):
            return False
        asked, capacity = sizes["asked"].bytes, sizes["capacity"].bytes
        short = self.short_of()
        return asked * 50 < capacity or (asked * 20 < capacity and short is not None and short.bytes * 2 > asked)

    def one_request(self):
        """Whether what failed is more than all that is live, and more than half of the card: that request is the problem."""
        sizes = self.account.sizes
        return self.known("asked", "capacity", "allocated", "free") and sizes["asked"].bytes > sizes["allocated"].bytes \
            and sizes["asked"].bytes * 2 > sizes["capacity"].bytes

    # ------------------------------------------------------------------------------------------------------ the arithmetic

    def figures(self):
        """Lines of name, size, and where it comes from, in columns."""
        rows = []
        for line in self.account.lines():
            rows.append((self.say(line.name), self.shown(line.size), self.source(line)))
        for name in EXTRA:
            if name in self.account.sizes:
                rows.append((self.say(name), self.values[name], self.say("printed")))
        left, right = (max((columns(row[i]) for row in rows), default=0) for i in (0, 1))
        lines = []
        for name, size, source in rows:
            start = f"  {pad(name, left)}  {pad(size, right, before=True)}  "
            lines += wrapped(source, start, " " * columns(start))
        return lines

    def source(self, line):
        if not line.terms:
            shape = line.name == "asked" and "shape" in self.found.message.facts
            return self.say("note_shape") if shape else self.say("printed")
        parts = []
        for sign, name, size in line.terms:
            pid = re.fullmatch(r"process (\d+)", name)
            name = self.say("process", pid=pid[1]) if pid else self.say(name)
            parts.append(f"{sign + ' ' if sign else ''}{self.shown(size)} {name}")
        return " ".join(parts)

    # ------------------------------------------------------------------------------------------------------ in words

    @functools.cached_property
    def cause(self):
        """[(key, sentence)], and more of them where something has to be explained."""
        return [(key, capital(self.say(key, **values))) for key, values in causes(self)]

    @functools.cached_property
    def first(self):
        """(key of FIRST, what to do first, the line to paste or "")."""
        key, values = first(self)
        *texts, paste = FIRST[key]
        values = {**self.values, **values}
        paste = paste.format(**values)
        if self.context.windows:  # which has several shells, and export in none
            paste = re.sub(r'^export (\w+)="?([^"]+)"?$', r'import os; os.environ["\1"] = "\2"', paste)
        return key, texts[LANGUAGES.index(self.language)].format(**values), paste

    def notes(self, all_of_them=True):
        """What holds only sometimes, the most important first; not all of it belongs to a short answer."""
        found, sizes, context = self.found, self.account.sizes, self.context
        facts = found.message.facts
        keys = []
        if context.went_on:
            keys.append("note_went_on")
        if re.search(r"ipython-input|ipykernel|IPython/core|\bCell In ?\[|<ipython", context.before[-20000:] + context.after):
            keys.append("note_notebook")
        handled = re.search(r"During handling of the above exception, another exception occurred", found.after.far.loose)
        if handled and re.search(r"out of memory", found.after.far.loose[handled.end():], re.I):
            keys.append("note_retry")
        elif len(context.ranks) > 1:
            said = context.same_device and self.diagnosis == "other_process"
            keys += [] if said else ["note_ranks_of" if context.rank is not None and self.account.sizes else "note_ranks"]
        elif context.repeated:
            keys.append("note_repeated")
        elif found.count > 1 and found.message.rule in ("pytorch", "pytorch_async", "mps") and not context.recovered:
            keys.append("note_again")
        own, outside = sizes.get("own_outside"), sizes.get("outside")
        if own and ((all_of_them and "listed_is_this" in facts) or own.bytes >= MUCH_OUTSIDE):
            keys.append("note_own_outside")
        elif not all_of_them and outside and outside.bytes >= MUCH_OUTSIDE and self.diagnosis in ("live_tensors_fill_it", "fragmentation"):
            keys.append("note_outside_ours" if found.message.rule == "ours" else "note_outside_much")
        keys += [f"note_{fact}" for fact in ("listed_is_this", "private_pools", "listed_only", "program") if fact in facts]
        if found.message.rule == "ours":
            keys.append("note_ours")
        if not all_of_them:
            keys = [key for key in keys if key not in ("note_private_pools", "note_listed_only", "note_program")]
        if all_of_them and outside and outside.low > 0:
            keys.append("note_outside")
        short = self.missing("asked", "free", *(["cached"] if self.account.pieces_count() else []))
        if self.diagnosis == "live_tensors_fill_it" and "others" in sizes and short and sizes["others"].bytes >= short.bytes:
            keys.append("note_others_would_do")
        if all_of_them and self.known("limit", "capacity") and sizes["limit"].high >= sizes["capacity"].low and "pool_limit" not in facts:
            keys.append("note_limit_reached")
        values = {"ranks": self.ranks(), "rank": context.rank, "repeated": context.repeated}
        if "listed_is_this" in facts:
            pid, size = found.message.processes[0]
            values.update(pid=pid, listed=self.shown(size), used=self.shown(sizes["capacity"] - sizes["free"]))
        return [capital(self.say(key, **values)) for key in keys]

    @property
    def like(self):
        """The diagnosis whose advice and questions fit: one request that is the problem is as one that is too big for the card."""
        return "too_big_for_the_card" if self.cause[0][0] in ("why_one_request", "why_program_free") else self.diagnosis

    def questions(self):
        """What the message cannot say, and how to find out."""
        rule, diagnosis = self.found.message.rule, self.like
        keys = {"too_big_for_the_card": ["ask_size"], "live_tensors_fill_it": ["ask_tensors"], "fragmentation": ["ask_pieces"],
                "other_process": ["ask_holders"], "limit_set_by_user": ["ask_limit"], "host_memory": ["ask_host"],
                "kv_cache_or_pool_reservation": ["ask_reserve"], "not_enough_information": ["ask_card"]}[diagnosis][:]
        family = rule.split("_")[0]
        if keys[0] == "ask_host" and (self.context.windows or self.found.message.facts & {"mac", "windows", "page_file"}):
            keys = []  # its commands are Linux's
        elif family in ("tensorflow", "xla", "ours") and keys[0] in ("ask_tensors", "ask_pieces"):
            keys = []
        if family in ("tensorflow", "xla") and diagnosis != "host_memory":
            keys.append("ask_xla")
        elif family == "ours":
            keys.append("ask_ours")
        if rule in ("cuda", "cublas", "cudnn", "nccl"):
            keys.append("ask_where")
        if "outside" in self.account.sizes and "ask_holders" not in keys and not others_known(self):
            keys.append("ask_holders")
        return [self.say(key) for key in keys]

    def advice(self):
        """(what to do, where it is shown and what it costs), three times."""
        index = LANGUAGES.index(self.language)
        cache = self.diagnosis == "kv_cache_or_pool_reservation" and not self.found.message.rule.startswith(("xla", "tensorflow"))
        serving = cache or serves(self.first[0]) or serves(self.context.engine or "")
        for text, numbers, price in advice(self.like, self.found.message.rule, serving):
            shown = chapter_names(numbers, self.language)
            yield text[index], self.say("shown" if shown else "price", chapters=shown, price=price[index])

    # ------------------------------------------------------------------------------------------------------ as text

    def answer(self):
        """The lines of the cause and of what to do first."""
        _, what, paste = self.first
        key, sentence = self.cause[0]
        title = self.say(self.title(key))
        lines = wrapped(self.say("cause_alone", sentence=sentence) if key in SURE else self.say("cause", title=title, sentence=sentence))
        if self.context.recovered:
            lines += wrapped(self.say("note_recovered_pipeline" if self.context.without_pipeline else "note_recovered"))
        label = "needless" if self.context.recovered or "pinned_llama" in self.found.message.facts else "first"
        what = what[:1].lower() + what[1:] if label == "needless" else what
        return [*lines, *wrapped(self.say(label, what=what)), *([f"    {paste}"] if paste else [])]

    def title(self, key):
        """The key of the cause in a word, above the sentence of that key."""
        if key in TITLES:
            return TITLES[key]
        own, capacity = (self.account.sizes.get(name) for name in ("own_outside", "capacity"))
        if key in ("why_live", "why_live_last") and own and capacity and own.bytes * 8 > capacity.bytes:
            return "title_outside"
        return "unsure" if self.diagnosis == "not_enough_information" else self.diagnosis

    def short(self):
        """The answer in at most LINES lines: cause, what to do first, as many notes as there is room for in every language, and where the
        rest is."""
        answer, notes, rest = mine = self._parts()
        all_parts = [mine, *(Explanation(self.found, language)._parts() for language in LANGUAGES if language != self.language)]
        rooms = [LINES - len(lines) - len(last) for lines, _, last in all_parts]
        for i, note in enumerate(notes):
            needed = [len(others[i]) for _, others, _ in all_parts]
            if all(need <= room for need, room in zip(needed, rooms)):
                answer += note
                rooms = [room - need for room, need in zip(rooms, needed)]
        return "\n".join(answer + rest)

    def _parts(self):
        """The lines of the answer, those of each note, and those of where the rest is."""
        family = self.found.message.rule.split("_")[0]
        engine = family if family in SERVERS else self.context.engine
        general = dict.fromkeys(number for _, numbers, _ in advice(self.like, self.found.message.rule) for number in numbers)
        names = chapter_names(chapters(self.first[0], general, engine), self.language, most=3)
        rest = (wrapped(self.say("see", chapters=names)) if names else []) + wrapped(self.say("more"))
        return self.answer(), [wrapped(note) for note in self.notes(all_of_them=False)], rest

    def text(self):
        """The answer, and everything else."""
        found = self.found
        lines = self.answer()
        for i, paragraph in enumerate((*(sentence for _, sentence in self.cause[1:]), *self.notes())):
            lines += ["", *wrapped(paragraph)] if i == 0 else wrapped(paragraph)
        name = framework_name(found.message.framework, self.language)
        lines += ["", self.say("found", framework=name), *wrapped(terminal.as_text(found.message.text), "  ")]
        if found.count > 1:
            lines += wrapped(self.say("count", count=found.count))
        if found.others:
            lines += wrapped(self.say("also", names=", ".join(framework_name(other, self.language) for other in found.others)))
        figures = self.figures()
        if figures:
            device = found.message.device
            lines += ["", self.say("figures") if device is None else self.say("figures_device", device=device), *figures]
        lines += ["", self.say("do")]
        for i, (what, where) in enumerate(self.advice(), 1):
            lines += wrapped(what, f"  {i}. ", "     ") + wrapped(where, "     ")
        questions = self.questions()
        lines += ["", self.say("cannot")] if questions else []
        for question in questions:
            lines += wrapped(question, "  - ", "    ")
        return "\n".join(lines)


def capital(sentence):
    return sentence[:1].upper() + sentence[1:]


def chapter_names(numbers, language, most=99):
    """Those of the chapters that exist: their folders, in Chinese their numbers and titles."""
    names = [name for name in (chapter_name(number, language) for number in numbers) if name]
    return (", " if language == "en" else "、").join(names[:most])


@functools.lru_cache(maxsize=None)
def chapter_name(number, language):
    folder = next(iter(sorted(ROOT.glob(f"chapters/{number}_*"))), None)
    page = folder / "README.zh-CN.md" if folder else None
    if language == "zh" and page and page.exists():  # what is packed for elsewhere has no pages
        heading = page.read_text(encoding="utf-8").partition("\n")[0]  # "# 06 - title"
        return f"第 {number} 章《{heading.partition(' - ')[2]}》"
    return f"chapters/{folder.name}" if folder else None
