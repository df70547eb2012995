#!/usr/bin/env python3
"""A lesson is read aloud: one statement on a line, no comma chains, nothing over 120 columns.

  lessons_test.py ROOT               every chapters/NN_name/lesson.cu, and whether what it must notice is noticed
  lessons_test.py ROOT LESSON ...    only these

An assignment stands alone, not in the middle of an expression or a condition. A comma chain: statements joined by commas instead of semicolons,
also in brackets, in the head of a loop, behind return, or in a macro. Commas between arguments are none. A declaration names one variable, so
that each can say what it is. One line, one statement: of a loop or an if with its body on the same line the head does not count, but a second
head does; and of a block of several lines, the first and the last hold its braces.
"""
import pathlib
import re
import sys

COLUMNS = 120
HEAD = re.compile(r"\b(for|if|while|switch)\s*(?:constexpr\s*)?\(")
TYPE = r"(?:(?:const|constexpr|static|unsigned|long|struct)\s+)*[A-Za-z_][\w:]*(?:<[^;()]*>)?(?:\s+const)?"
DECLARATION = re.compile(rf"(?!return\b|throw\b|else\b|delete\b){TYPE}(?:\s*[*&]+\s*|\s+)[*&]?\s*(?:\[|[A-Za-z_])")
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+\w+(?:\([^)]*\))?((?:[^\n]*\\\n)*[^\n]*)", re.M)
# What stands before the arguments of a call, or before parameters: a name, f<T>, another bracket.
CALLED = re.compile(r"(?:(?<!\w)(?!(?:return|throw|else|do|case)\b)\w+|[\])]|\S>)\s*$")


def without_words(text):
    """The text without what comments and literals say; as long as before, and as many lines."""
    return re.sub(r'"(?:\\.|[^"\\\n])*"' + r"|'(?:\\.|[^'\\\n])'" + r"|//[^\n]*|/\*.*?\*/", blank, text, flags=re.S)


def blanked(text):
    """The same without the preprocessor's lines and the shapes of launches, too."""
    text = re.sub(r"<<<[^;]*?>>>", blank, without_words(text))
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def blank(match):
    return re.sub(r"[^\n]", " ", match[0])


def closing(text, start):
    """Where the bracket that opens at `start` is closed."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i
    return len(text) - 1


def pieces(text):
    """Statements, (where, text): what stands between semicolons and braces, brackets with what they hold being one word."""
    found, start, i = [], 0, 0
    while i < len(text):
        head = HEAD.match(text, i) if i == 0 or not re.match(r"\w", text[i - 1]) else None
        if head or text[i] in "([":
            at = opens = head.end() - 1 if head else i
            end = closing(text, opens)
            while (at := text.find("{", at, end)) >= 0:
                body = text[at + 1:closing(text, at)]
                if ";" in body:  # of a lambda
                    found += [(at + 1 + where, piece) for where, piece in pieces(body)]
                    at += len(body)
                at += 1
            if head:
                found += [(start, text[start:i]), (i, text[i:end + 1])]
                start = end + 1
            i = end + 1
            continue
        if text[i] == "{" and ";" not in text[i:closing(text, i)]:  # the values of an aggregate
            i = closing(text, i) + 1
            continue
        if text[i] in ";{}":
            found.append((start, text[start:i + 1]))
            start = i + 1
        i += 1
    return [(at + len(piece) - len(piece.lstrip()), piece.strip()) for at, piece in found if piece.strip()]


def has_comma(piece):
    """Whether a comma stands outside of all brackets."""
    depth = 0
    for c in piece:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            return True
    return False


def has_inner_comma(piece):
    """Whether a comma joins expressions in brackets that hold no arguments: (f(), g()), or a[f(), g()]."""
    for match in re.finditer(r"[(\[]", piece):
        before = piece[:match.start()]
        index = match[0] == "[" and re.search(r"[\w\])]$", before)
        if (index or match[0] == "(" and not CALLED.search(before)) and has_comma(piece[match.end():closing(piece, match.start())]):
            return True
    return False


def assigns_inside(piece):
    """Whether a value is assigned in the middle of an expression: f(a += b), or a = b = c."""
    while (shorter := re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", "", piece)) != piece:
        piece = shorter
    depth, outside = 0, 0
    for match in re.finditer(r"[()]|[-+*/%&|^]=(?!=)|(?<![-+*/%&|^=!<>])=(?!=)", piece):
        depth += (match[0] == "(") - (match[0] == ")")
        if match[0] not in "()":
            if depth > 0:
                return True
            outside += 1
    return outside > 1 and not has_comma(piece)


def in_head(head, piece):
    """What is wrong in the brackets of a loop or a condition."""
    parts = piece[head.end():-1].split(";")
    counts = head[1] == "for" and len(parts) == 3
    condition = parts[1] if counts else parts[-1]
    return [what for bad, what in [
        (counts and any(map(has_comma, parts)), "a loop over two variables"),
        (not counts and has_comma(condition), "a comma chain"),
        (not counts and len(parts) > 1, "several statements"),
        (assigns_inside(f"({condition})"), "an assignment inside an expression"),
    ] if bad]


def in_macro(body):
    """What is wrong in what a macro stands for."""
    return [what for bad, what in [(has_comma(body) or has_inner_comma(body), "a comma chain"), (body.count(";") > 1, "several statements")] if bad]


def beside_braces(code):
    """Where a statement stands beside a brace of a block of several lines."""
    for match in re.finditer(r"\{", code):
        end = closing(code, match.start())
        lines = code[match.end():end].split("\n")
        if len(lines) == 1 or ";" not in code[match.end():end]:
            continue
        if lines[0].strip():
            yield match.start()
        if lines[-1].strip() or not re.match(r" *(?:[\n);,]|else\b|while\b|catch\b|\w+;|$)", code[end + 1:]):
            yield end


def complaints(text):
    found = [(number, f"{len(line)} columns, more than {COLUMNS}") for number, line in enumerate(text.splitlines(), 1) if len(line) > COLUMNS]
    code = blanked(text)
    for macro in MACRO.finditer(without_words(text)):
        found += [(text.count("\n", 0, macro.start()) + 1, what) for what in in_macro(macro[1])]
    found += [(code.count("\n", 0, at) + 1, "several statements") for at in beside_braces(code)]
    ends, heads = {}, {}
    for at, piece in pieces(code):
        line = code.count("\n", 0, at) + 1
        last = line + piece.count("\n")
        head = HEAD.match(piece)
        if has_inner_comma(piece[head.end():] if head else piece):
            found.append((line, "a comma chain"))
        if head:
            found += [(line, what) for what in in_head(head, piece)]
            if head[1] != "switch":
                heads[line] = heads.get(line, 0) + 1
        elif piece.endswith(";") and piece != ";":
            ends[last] = ends.get(last, 0) + 1
            if line != last:
                ends[line] = ends.get(line, 0) + 1
            if has_comma(piece):
                found.append((line, "several names in a declaration" if DECLARATION.match(piece) else "a comma chain"))
            if assigns_inside(piece):
                found.append((line, "an assignment inside an expression"))
    found += [(line, "several statements") for line, count in ends.items() if count > 1]
    found += [(line, "one loop or condition inside another") for line, count in heads.items() if count > 1]
    return sorted(set(found))


GOOD = '''
constexpr int rows = 64;
constexpr int width = 128;
__global__ void f(const float* a, int n) {  // x, y; and z;
  float largest = 0;
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) largest = fmaxf(largest, fabsf(a[i]));
  if (largest > 0) sum = 1;
  float* p = nullptr;
  const float table[2] = {0, 1};
  std::vector<float> before(n);
  std::printf("%d, %d; \\n", n, n);
  const auto twice = [&](int i) { return 2 * i; };
  const char *const names[] = {"a, b", "c"};
  const std::vector<float> copied(before.begin(), before.end());
  CHECK(cudaMemcpy(before.data(), a, n * sizeof(float), cudaMemcpyDeviceToHost));
  if (std::equal(before.begin(), before.end(), copied.begin())) update<float><<<blocks, threads>>>(p, n);
  const auto [what, run] = halves[std::min(n, 1)];
  do {
    const auto add = [&](int i, int j) {
      sum += table[i] * table[j];
    };
    n /= 2;
  } while (n != 0 && sum <= 1);
  try {
    run(twice(n));
  } catch (const Full&) {
    sum = 0;
  }
}
const char* text(int error) { return name(error, 0); }
#define CHECK(call) check(call, #call)
f<<<blocks, threads>>>(a, n);
for (const auto& [what, run] : {Pair{"a", 1}, Pair{"b", 2}}) print(what, run);
'''
BAD = {"  a = 1, b = 2;": "a comma chain", "  CHECK(f(x)), x = 0;": "a comma chain", "  return CHECK(f(x)), x;": "a comma chain",
       "  for (int i = 0, j = 0; i < n; ++i) f(i);": "a loop over two variables", "  for (int i = 0; i < n; ++i, ++j) f(i);": "a loop over two variables",
       "  if (x) a = 1, b = 2;": "a comma chain", "  a = 1; b = 2;": "several statements", "  f(p), q.drop();": "a comma chain",
       "  ~Buffer() { CHECK(cudaFree(p)), live -= bytes; }": "a comma chain", "  void f() { a = 1; b = 2; }": "several statements",
       "  f<<<blocks, threads>>>(a), CHECK(cudaGetLastError());": "a comma chain", "  for (int i : a) for (int j : b) f(i, j);": "one loop or condition inside another",
       "  const auto g = [&](int i) { a = i, b = i; };": "a comma chain", "  run([&] { a = 1; b = 2; });": "several statements",
       "  peak = std::max(peak, live += bytes);": "an assignment inside an expression", "  live = peak = 0;": "an assignment inside an expression",
       "  if (!good) std::printf(\"%s, \", what), std::exit(1);": "a comma chain", "  float a = 0, b = 0;": "several names", "constexpr int a = 1, b = 2;": "several names",
       "  float *p = nullptr, *q = nullptr;": "several names", "  std::vector<float> a(n), b(n);": "several names", "  // " + "x" * 120: "columns, more than",
       "  (f(p), g(p));": "a comma chain", "  return (CHECK(f(p)), x);": "a comma chain", "  g((f(p), 2));": "a comma chain", "  a[f(p), 1] = 2;": "a comma chain",
       "  x ? f(p) : (g(p), h(p));": "a comma chain", "  if (CHECK(f(p)), x) g(p);": "a comma chain", "  while (f(p), x) g(p);": "a comma chain",
       "  if (f(p); x) g(p);": "several statements", "  if ((x = f(p)) > 0) g(p);": "an assignment inside an expression",
       "  for (int i = 0; (x = i) < n; ++i) g(i);": "an assignment inside an expression",
       "  do {\n    f(p);\n  } while ((n /= 2) > 1);": "an assignment inside an expression",
       "  for (const auto& g : {[&] { a = f(p), b = 1; }}) g();": "a comma chain", "  run([&] { f(p); }, [&] { f(p), g(p); });": "a comma chain",
       "  if (x) { f(p);\n    g(p);\n  }": "several statements", "  if (x) {\n    f(p);\n    g(p); }": "several statements",
       "  if (x) {\n    f(p);\n  } g(p);": "several statements", "#define BOTH(p) (f(p), g(p))": "a comma chain", "#define BOTH(p) f(p), g(p)": "a comma chain",
       "#define BOTH(p) { f(p); g(p); }": "several statements"}


def main():
    root = pathlib.Path(sys.argv[1])
    lessons = [pathlib.Path(a) for a in sys.argv[2:]] or sorted(root.glob("chapters/*/lesson.cu"))
    failures = [f"{lesson}:{line}: {what}" for lesson in lessons for line, what in complaints(lesson.read_text())]
    if not lessons:
        failures.append("no lessons")
    failures += [f"noticed where nothing is wrong: line {line}: {what}" for line, what in complaints(GOOD)]
    for line, expected in BAD.items():
        if not any(expected in what for _, what in complaints(GOOD.replace("  float largest", line + "\n  float largest"))):
            failures.append(f"not noticed: {line.strip()}")
    print("\n".join(failures) or f"{len(lessons)} lessons")
    sys.exit(1 if failures else 0)


main()
