"""The table of puzzles that chapters/README.md has, and of a chapter's its README."""
import re

from puzzling import catalog, words


def table(puzzles, language, folder):
    """The puzzles as a README in this folder shows them."""
    lines = [words.say("table_head", language), "|---|---|---|"]
    for puzzle in puzzles:
        task = puzzle.task(language)
        lines.append(f"| [`{puzzle.id}`]({puzzle.folder.relative_to(folder)}/puzzle.cu) | {task.title} | {task.minutes} |")
    return "\n".join(lines)


def table_of(name, language):
    """Of all puzzles, or of those that `name` means."""
    puzzles, folder = catalog.all_puzzles(), catalog.ROOT / "chapters"
    wanted = catalog.find(puzzles, name) if name else puzzles
    return table(wanted, language, folder / wanted[0].chapter if name and wanted else folder)


def asked_for(line):
    """The table that a command prints, `bench/puzzle 16 --table --lang zh`; None for any other command."""
    asked = re.fullmatch(r"bench/puzzle(?: (\d\d))? --table(?: --lang (zh))?", line)
    return table_of(asked[1], asked[2] or "en") if asked else None
