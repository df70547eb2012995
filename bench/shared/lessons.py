"""How a chapter's lesson is run."""
import re


def lesson_settings(folder):
    """The environment of the host runtime that the lesson of the chapter in `folder` needs, NAME=value, as its CMakeLists.txt says."""
    said = (folder / "CMakeLists.txt").read_text()
    devices, own = re.search(r"DEVICES (\d+)", said), re.search(r"LESSON_ENVIRONMENT ([^)]{1,400})\)", said)
    return ([f"OOMLAB_HOST_DEVICES={devices[1]}"] if devices else []) + (own[1].split() if own else [])
