#!/usr/bin/env python3
"""A number format is one row of common/dtype.h: nobody else knows its bytes, or has a list of names.

  formats_test.py ROOT

Reads the sources of common/, chapters/ and bench/, but no lesson, puzzle or test, and no comment. Names and words are those of the
table's rows. What is allowed stands in ALLOWED, with its reason; what is allowed and not there any more is a complaint, too.
"""
import pathlib
import re
import sys

from clockless_test import statements

TABLE = "common/dtype.h"
ROW = re.compile(r'\{DType::(\w+), +"(\w+)", +\d+, +"(\w*)", +"(\w*)", +"(\w*)"')
FOLDERS = ("common", "chapters", "bench")
SKIPPED = re.compile(r"^common/host/|/(tests|puzzle)/|/lesson\.(cu|py)$")

# File, text of the statement (empty: the whole file), reason.
ALLOWED = [
    ("common/cuda/dtype_of.h", "CUDA_R_", "the one place that says cuBLAS's words to the compiler"),
    ("common/train/precision.h", "pure_fp16", "recipes: FP16 with and without master weights"),
    ("common/plan/quantised/format.h", "int8_tensor", "layouts: which scales INT8 has"),
    ("bench/explaining/others.py", "", "types in other frameworks' messages, also those that nothing here is stored in"),
    ("bench/publishing/pages.py", "", "columns of the table of cards, and words of published command lines"),
    ("bench/shared/results_files.py", "", "names of variants in result files"),
    ("bench/publishing/pictures/layouts.py", "", "names of variants in result files"),
    ("bench/publishing/pictures/training.py", "", "what the picture is about: range and significant bits"),
    ("bench/peers/pytorch_peer.py", "", "PyTorch alone: it runs where nothing of this repository is built"),
    ("bench/peers/huggingface_drawn.py", "", "PyTorch alone: it runs where nothing of this repository is built"),
    ("bench/peers/huggingface_ranks.py", "", "PyTorch alone: it runs where nothing of this repository is built"),
    ("bench/peers/huggingface_training.py", "", "PyTorch alone: it runs where nothing of this repository is built"),
    ("bench/peers/pytorch_training.py", "", "PyTorch alone: it runs where nothing of this repository is built"),
]


class Rules:
    """What is a ladder or a list, by the names and words of the table."""

    def __init__(self, rows):
        enumerators = "|".join(row[0] for row in rows)
        words = {word for row in rows for word in row[1:] if word}
        self.words = words
        word = "|".join(sorted(words, key=len, reverse=True))
        literal = rf'"(?:{word})"'
        size = r"(?:sizeof\(\w+\)|[1248])"
        about = rf"\b(?:{enumerators})\b|\bhalf\b|autocast|[dD][tT]ype|sizeof|element|precision"
        self.literals = re.compile(r'"([^"\n]*)"')
        self.separators = re.compile(r", | or | ")
        self.kinds = {
            "chooses a size": re.compile(rf"(?:{about})[^?;(]*\?\s*{size}\s*:\s*{size}"),
            "guesses a format from a size": re.compile(r"\b(?:e|e_|element\w*|sizeof\(\w+\))\s*[=!]=\s*(?:[1248]\b(?!\d)|sizeof\(\w+\)\s*\?)"),
            "chooses a word": re.compile(rf"\?[^;]*:\s*{literal}|\?\s*{literal}|\breturn\s*{literal}"),
            "compares with a word": re.compile(rf"[=!]=\s*{literal}|{literal}\s*[=!]=|strcmp\([^()]*{literal}"),
            "has a word and its bytes": re.compile(rf"{literal}(?:,|:)\s*[1248]\b"),
            "has cuBLAS's words": re.compile(r"\bCUDA_R_\w+"),
            "is a second list": re.compile(rf"enum (?:class )?\w+[^;]*\{{[^}}]*\b(?:{enumerators})\b[^}}]*\b(?:{enumerators})\b[^}}]*\}}"),
        }

    def complaints(self, name, text):
        """(line number, statement, what is wrong with it)."""
        for found in self.kinds["is a second list"].finditer(re.sub(r"//[^\n]*", "", text)):
            yield 0, " ".join(found[0].split()), "is a second list"
        for number, statement in statements(name, text):
            for what, expression in self.kinds.items():
                if what == "chooses a word" and name.endswith(".py"):
                    continue
                if expression.search(statement):
                    yield number, statement, what
            listed = set()
            for literal in self.literals.findall(statement):
                parts = self.separators.split(literal)
                if all(part in self.words for part in parts):
                    listed |= set(parts)
            if len(listed) > 1:
                yield number, statement, "lists words"


def rows_of(root):
    return ROW.findall((root / TABLE).read_text(encoding="utf-8"))


def sources(root):
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            name = str(file.relative_to(root))
            if file.suffix in (".h", ".cpp", ".cu", ".py") and name != TABLE and not SKIPPED.search(name):
                yield name, file.read_text(encoding="utf-8")


NOTICED = [
    ("a.h", "return precision == Arithmetic::fp32 ? 4 : 2;"), ("a.h", "return recipe.bf16 ? sizeof(Bf16) : sizeof(float);"),
    ("a.h", "e_(autocast_ ? 2 : 4),"), ("a.cpp", "checked_product(bytes, e == 2 ? 3 : 2);"), ("a.h", "master(sizeof(T) == 2);"),
    ("a.h", "return sizeof(T) == sizeof(float) ? DType::fp32 : DType::bf16;"), ("a.h", "const char* name = half ? \"fp16\" : \"bf16\";"),
    ("a.h", "const bool narrow = config.options[kRest] == \"bf16\";"), ("a.h", "{Dtype::f32, \"F32\", 4},"),
    ("a.h", "case DType::fp32: return \"fp32\";"), ("a.cpp", "std::strcmp(t.type, \"F32\") == 0;"),
    ("a.h", "Option kPrecision{\"precision\", \"one of\", \"fp32 fp16 bf16\"};"), ("a.h", "say(\"fp32, fp16 or bf16\");"),
    ("a.cpp", "word(o, text, {\"fp32\", \"fp16\", \"bf16\"});"), ("a.h", "enum class Arithmetic { fp32, fp16, bf16 };"),
    ("a.cu", "gemm(a.data(), CUDA_R_32F, n);"), ("a.py", "BYTES = {\"float32\": 4, \"float16\": 2}"),
    ("a.py", "names = {\"fp32\": \"float32\"}"),
]
NOT_NOTICED = [
    ("a.h", "// fp32 ? 4 : 2\nreturn element_bytes(dtype);"), ("a.cpp", "instead(length, code < 0x80 ? 2 : 4, code);"),
    ("a.h", "const double tolerance = dtype == DType::fp32 ? 1e-6 : 1e-3;"), ("a.h", "say(\"--precision fp16 is for one rank; take bf16\");"),
    ("a.h", "{\"bf16, master\", bf16, {adamw, master}, always},"), ("a.h", "sent += l.zero == 2 ? 3 : 2;"),
]


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    rows = rows_of(root)
    rules = Rules(rows)
    wrong = [] if len(rows) > 9 else [f"{TABLE}: only {len(rows)} rows are read"]
    wrong += [f"not noticed in {name}: {text}" for name, text in NOTICED if not list(rules.complaints(name, text))]
    wrong += [f"noticed in {name}: {text}" for name, text in NOT_NOTICED if list(rules.complaints(name, text))]
    used, files = set(), 0
    for name, text in sources(root):
        files += 1
        for number, statement, what in rules.complaints(name, text):
            allowed = [entry for entry in ALLOWED if entry[0] == name and entry[1] in statement]
            used.update(allowed)
            if not allowed:
                wrong.append(f"{name}:{number}: {what}: {statement[:150]}")
    wrong += [f"{entry[0]}: allowed, and not there: {entry[1] or 'any'}" for entry in ALLOWED if entry not in used]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(rows)} formats, {files} files, {len(wrong)} complaints")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
