"""codespell over all prose: documents, comments, what programs print. Its settings are in .codespellrc.

  spelling_test.py ROOT      exit code 2 where codespell is not installed
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

root = pathlib.Path(sys.argv[1]).resolve()
if not shutil.which("codespell"):
    print("codespell is not installed")
    sys.exit(2)


def misspelt(*where):
    done = subprocess.run(["codespell", *where], cwd=root, capture_output=True, text=True)
    if done.stderr.strip():
        sys.exit(f"codespell: {done.stderr}")
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    planted = pathlib.Path(folder) / "planted.md"
    planted.write_text("Memory is aloc" + "ated.\n")
    assert "planted.md:1" in misspelt(planted), "a planted mistake is not found"
found = misspelt(".", ".github")
print(found or "no misspelt word")
sys.exit(1 if found else 0)
