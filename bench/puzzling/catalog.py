"""What puzzles there are: chapters/NN_name/puzzle/NAME/, found by their folders.

  puzzle.cu              what the reader mends, between the lines that begin with "// TODO" and "// end of TODO"
  judge.cpp              calls the reader's function (bench/puzzling/judge.h)
  task.md, task.zh-CN.md title, minutes, task, three hints, and what the solution does
  answers/solution.cu    what belongs between the two lines; answers/*.cu beside it say in their first line how they fail, or that they pass
"""
import pathlib
import re
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
JUDGED_HERE = (ROOT / "common/host").is_dir()  # pip's package has the tasks, and no runtime to judge with
TASKS = {"en": "task.md", "zh": "task.zh-CN.md"}
HINTS = 3


class Task(typing.NamedTuple):
    """A task.md, in one language."""
    title: str
    minutes: int
    text: str
    hints: typing.List[str]
    solution: str


class Answer(typing.NamedTuple):
    name: str
    fails: typing.Optional[str]  # the kind of the verdict; None: it passes
    part: str                    # what belongs between the two lines


class Puzzle:
    def __init__(self, folder):
        self.folder = folder
        self.chapter = folder.parent.parent.name
        self.number = self.chapter[:2]
        self.id = f"{self.number}-{folder.name}"

    def given(self):
        return (self.folder / "puzzle.cu").read_text(encoding="utf-8")

    def task(self, language="en"):
        return read_task((self.folder / TASKS[language]).read_text(encoding="utf-8"))

    def functions(self):
        """Names of those that the judge calls."""
        judge = (self.folder / "judge.cpp").read_text(encoding="utf-8")
        return re.findall(r"^\w[\w:<> *]*?[ *](\w+)\(", judge.split("using namespace")[0], re.M)

    def functions_in(self, text):
        """How many of those a file has."""
        return sum(bool(re.search(rf"\b{name}\(", text)) for name in self.functions())

    def answers(self):
        for file in sorted((self.folder / "answers").glob("*.cu")):
            text = file.read_text(encoding="utf-8")
            says = re.match(r"// (?:FAILS: (\w+)|PASSES: .*)\n", text)
            yield Answer(file.stem, says[1] if says else None, text[says.end():] if says else text)

    def solution(self):
        return (self.folder / "answers/solution.cu").read_text(encoding="utf-8")

    def _parts(self):
        """What stands before the two lines, between them with its comment, and behind."""
        before, rest = re.split(r"^// TODO", self.given(), maxsplit=1, flags=re.M)
        return (before, *re.split(r"^// end of TODO\n", rest, maxsplit=1, flags=re.M))

    def to_mend(self):
        """What stands between the two lines, without the comment that says what to do."""
        return re.sub(r"\A.*\n(?://.*\n)*", "", self._parts()[1])

    def filled_in(self, part):
        """The puzzle with this instead of what stands between the two lines."""
        before, _, after = self._parts()
        return before + part + after


def read_task(text):
    head, *sections = re.split(r"^## .*\n", text, flags=re.M)
    title, minutes, task = re.fullmatch(r"# (.+)\n\nminutes: (\d+)\n\n(.+)", head, re.S).groups()
    hints = [section.strip() for section in sections[:HINTS]]
    return Task(title, int(minutes), task.strip(), hints, sections[HINTS].strip())


def all_puzzles(root=ROOT):
    return [Puzzle(file.parent) for file in sorted(root.glob("chapters/[0-9][0-9]_*/puzzle/*/puzzle.cu"))]


def find(puzzles, name):
    """Those meant by 04, 4, 04-segments, segments, the chapter's name, or the beginning of one puzzle's name."""
    number = name.zfill(2) if name.isdigit() else name
    exact = [p for p in puzzles if number in (p.number, p.id, p.folder.name, p.chapter)]
    begin = [p for p in puzzles if name and (p.id.startswith(name) or p.folder.name.startswith(name))]
    return exact or (begin if len(begin) == 1 else [])


def device_functions(root=ROOT):
    """Names that the host runtime has for kernels, beside C++'s, in order."""
    text = (root / "bench/puzzling/blocks/device_functions.h").read_text(encoding="utf-8")
    names = re.findall(r"^(?:inline [\w ]+?|T|#define) (\w+)\(", text, re.M) + re.findall(r"^OOMLAB_ATOMIC\((\w+)", text, re.M)
    vectors = [f"{name}{n}" for name in re.findall(r"^OOMLAB_SHORT_VECTORS\(\w+, (\w+)\)", text, re.M) for n in (2, 4)]
    names += re.findall(r"\bint (warpSize)\b", text) + vectors + [f"make_{name}" for name in vectors]
    names += ["__syncthreads", "atomicAdd"] + (["atomicCAS"] if "OOMLAB_ATOMIC_CAS(int)" in text else [])
    return sorted({name for name in names if not name.startswith("OOMLAB") and name not in ("atomically", "lane", "of_lane")}, key=lambda n: (n.lstrip("_").lower(), n))
