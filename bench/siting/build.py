#!/usr/bin/env python3
"""Builds the site below build/site/html: bench/site runs this with the Python of build/site/tools. Nothing is fetched."""
import argparse
import importlib.metadata
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from siting import slides, tree  # noqa: E402

WORK = ROOT / "build/site"
FEATURES = ["navigation.tabs", "navigation.indexes", "navigation.prune", "navigation.footer", "navigation.top", "search.suggest", "search.highlight", "content.code.copy", "toc.follow"]
SAID = {"en": "A course about running out of GPU memory: what fills the card, and what to do about it", "zh": "一门关于显存不足的课程：是什么占满了显卡，该怎么办"}
SCHEMES = {"en": ("As the system has it", "Light", "Dark"), "zh": ("跟随系统", "浅色", "深色")}
SEPARATOR = {"en": r"[\s\-,:!=\[\](){}\"/`]+", "zh": r"[\s\u200b\u3000\-,:!=\[\](){}\"/`、。，．？！；：（）]+"}


def palette(language):
    system, light, dark = SCHEMES[language]
    both = {"primary": "custom", "accent": "custom"}
    return [{"media": "(prefers-color-scheme)", "toggle": {"icon": "material/brightness-auto", "name": system}},
            both | {"media": "(prefers-color-scheme: light)", "scheme": "default", "toggle": {"icon": "material/brightness-7", "name": light}},
            both | {"media": "(prefers-color-scheme: dark)", "scheme": "slate", "toggle": {"icon": "material/brightness-4", "name": dark}}]


def configuration(site, language, made, out, arguments):
    """MkDocs' settings for the site of one language."""
    top = arguments.address.rstrip("/") + "/" if arguments.address else ""
    search = {"lang": ["en"], "separator": SEPARATOR[language]}
    if language == "zh":
        search["jieba_dict_user"] = str(WORK / "words.txt")
        search["pipeline"] = []  # a question is cut into words of the index: cut to its stem there, "fragmentation" would not be found
    return {
        "site_name": "OOM Lab", "site_description": SAID[language], "docs_dir": str(WORK / "empty"),
        "site_dir": str(out / "zh" if language == "zh" else out), "site_url": top and top + ("zh/" if language == "zh" else ""),
        "repo_url": arguments.repository or "", "edit_uri": "", "copyright": "Apache License 2.0",
        "hooks": [str(ROOT / "bench/siting/hooks.py")], "nav": site.navigation(language, made), "use_directory_urls": False,
        "theme": {"name": "material", "custom_dir": str(ROOT / "site/course"), "language": language, "font": False, "features": FEATURES, "palette": palette(language)},
        "plugins": [{"search": search}, "offline"], "extra_css": ["assets/course.css"], "strict": True,
        "extra": {"language": language, "top": top, "polyfills": ["assets/iframe-worker.js"], "generator": False},
    }


def terms():
    """The glossary's Chinese words, for the search: a text is indexed in words, and these are not in every list."""
    with open(ROOT / "docs/data/glossary.toml", "rb") as file:
        return sorted({word for entry in tomllib.load(file)["entry"] for word in [entry["term_zh"], *entry.get("also_zh", ())]})


def report(out):
    folders = sorted(p.parent for p in (ROOT / "bench/results").glob("*/system.json"))
    (out / "report").mkdir()
    subprocess.run([sys.executable, ROOT / "bench/report", *folders, "-o", out / "report/index.html"], check=True, stdout=subprocess.DEVNULL)


def licence(out):
    """The theme's licence, which asks to go with what is copied of it; that of reveal.js lies beside it already."""
    (file,) = (file for file in importlib.metadata.files("mkdocs-material") if file.match("licenses/LICENSE"))
    for folder in ("assets", "zh/assets"):
        shutil.copy(file.locate(), out / folder / "LICENSE.txt")


def main():
    parser = argparse.ArgumentParser(prog="bench/site")
    parser.add_argument("--address", default="", metavar="URL")
    parser.add_argument("--repository", default="", metavar="URL")
    arguments = parser.parse_args()
    began, site, out = time.monotonic(), tree.Tree(ROOT), WORK / "new"
    shutil.rmtree(out, ignore_errors=True)
    (WORK / "empty").mkdir(parents=True, exist_ok=True)
    (WORK / "words.txt").write_text("".join(f"{word} 100000\n" for word in terms()), encoding="utf-8")
    fit = ROOT / "build/web/fit.html"
    made = [name for name in tree.MADE if name != "fit/" or fit.exists()]
    for language in tree.LANGUAGES:
        settings = WORK / f"mkdocs.{language}.yml"
        settings.write_text(json.dumps(configuration(site, language, made, out, arguments), indent=1, ensure_ascii=False), encoding="utf-8")  # JSON is YAML, too
        subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", settings], check=True,
                       env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"})
    licence(out)
    report(out)
    shown = slides.write(site, out, ROOT / "site/slides/deck.html")
    shutil.copy(ROOT / "docs/card.png", out)
    if fit.exists():
        (out / "fit").mkdir()
        shutil.copy(fit, out / "fit/index.html")
    else:
        print("bench/site: without the planner's page, which bench/web builds", file=sys.stderr)
    shutil.rmtree(WORK / "html", ignore_errors=True)
    out.rename(WORK / "html")
    print(f"{len(site.pages)} pages, {shown} slides, {sum(1 for _ in (WORK / 'html').rglob('*.html'))} files of HTML, {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(WORK / "html/index.html")


if __name__ == "__main__":
    try:
        main()
    except tree.DeadLink as error:
        sys.exit(f"bench/site: this link leads nowhere: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # it has said why
