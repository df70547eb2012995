"""tests/mutants/run on a project of one text file: each verdict, and that nothing is left behind."""

import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES NONE)
enable_testing()
add_custom_target(program COMMAND grep -q compiles "${CMAKE_SOURCE_DIR}/code.txt"
  COMMAND "${CMAKE_COMMAND}" -E echo "x: QUOTES")
add_test(NAME sums COMMAND grep -q "one two" "${CMAKE_SOURCE_DIR}/code.txt")
add_test(NAME fails_anyway COMMAND grep -q nothing "${CMAKE_SOURCE_DIR}/code.txt")
add_test(NAME skipped COMMAND sh -c "exit 2")
set_tests_properties(skipped PROPERTIES SKIP_RETURN_CODE 2)
add_test(NAME slow COMMAND sleep 3600)
""".replace("QUOTES", "\u2019" * 1000)
PRESETS = """{"version": 6, "configurePresets": [{"name": "host", "generator": "Ninja",
"binaryDir": "${sourceDir}/build/${presetName}"}], "buildPresets": [{"name": "host", "configurePreset": "host"}],
"testPresets": [{"name": "host", "configurePreset": "host"}]}"""
CODE = "compiles one two three four four\n"


def entry(name, was, becomes, test, more='build = "program"'):
    return f"""[{name}]\nroom = "docs"\nfile = "code.txt"\nwas = "{was}"\nbecomes = "{becomes}"\nwrong = "x"\n{more}\ntest = "{test}"\n"""


DEFECTS = "".join([
    entry("good", "two", "2", "^sums$"),
    entry("survivor", "three", "3", "^sums$"),
    entry("no_compiler", "compiles", "", "^sums$"),
    entry("useless", "two", "2", "^fails_anyway$"),
    entry("skipped", "two", "2", "^skipped$"),
    entry("nowhere", "two", "2", "^nowhere$"),
    entry("twice", "four", "4", "^sums$"),
    entry("gone", "five", "5", "^sums$"),
    entry("slow", "two", "2", "^slow$"),
])

with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder).resolve()
    tool = root / "tests/mutants/run"
    tool.parent.mkdir(parents=True)
    shutil.copy(HERE / "run", tool)
    for name, text in [("CMakeLists.txt", CMAKE), ("CMakePresets.json", PRESETS), ("code.txt", "not yet changed\n"),
                       (".gitignore", "/build/\n"), ("tests/mutants/defects.toml", DEFECTS)]:
        (root / name).write_text(text, encoding="utf-8")
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    (root / "code.txt").write_text(CODE)  # in the working tree only
    copy = root / "build/mutants/tree/code.txt"

    def run(*arguments):
        done = subprocess.run([sys.executable, tool, *arguments], capture_output=True, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        assert (root / "code.txt").read_text() == CODE and (not copy.exists() or copy.read_text() == CODE)
        return done

    done = run("--list")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "9 defects" and not copy.exists()
    done = run("--stale")
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "9 defects, 2 stale" and not copy.exists(), done.stdout
    assert run("no_such").returncode == 64 and run("(").returncode == 64 and run("--no-such").returncode == 64

    done = run("good")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "1 passed, 0 failed", done.stdout

    done = run("good", "survivor", "no_compiler", "useless", "skipped", "nowhere", "twice", "gone")
    verdicts = {line.split()[3].rstrip(":"): line for line in done.stdout.splitlines() if ": " in line and " s  " in line}
    for name, words in [("good", "caught"), ("survivor", "SURVIVED"), ("no_compiler", "does not build"),
                        ("useless", "fails_anyway fails without the defect"), ("skipped", "no test of it runs"),
                        ("nowhere", "no test of it runs"), ("twice", "2 times"), ("gone", "0 times")]:
        assert words in verdicts[name], (name, done.stdout)
    assert done.returncode == 1 and done.stdout.splitlines()[-1] == "1 passed, 7 failed", done.stdout

    # Interrupted while a defect is planted; meanwhile nobody else may use the copy.
    slow = subprocess.Popen([sys.executable, tool, "--no-baseline", "slow"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    planted = CODE.replace("two", "2")
    while copy.read_text() != planted and slow.poll() is None:  # for a moment, while it is written, the file is neither
        time.sleep(0.05)
    assert copy.read_text() == planted
    done = subprocess.run([sys.executable, tool, "good"], capture_output=True, text=True)
    assert done.returncode == 1 and "another run" in done.stderr, done
    slow.send_signal(signal.SIGTERM)
    assert slow.wait(600) == 130 and copy.read_text() == CODE
print("ok")
