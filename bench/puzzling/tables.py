"""The table of puzzles that chapters/README.md has, and of a chapter's its README."""
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
