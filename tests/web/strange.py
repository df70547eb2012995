"""Links, files, options and windows that are not as they should be, and what the page says beside an answer: further checks of page_test.py."""
import json
import shlex

from opened import written

NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })"


def checks_of(page, built):
    def native(*words, lang="en"):
        return built.natively([*words, "--lang", lang])

    def refusal(*words):
        return native(*words)["err"].removeprefix("fit: ").strip()

    def an_address_that_cannot_be_written_is_no_end():
        stub = page.browser("Page.addScriptToEvaluateOnNewDocument", source="History.prototype.replaceState = () => { throw new DOMException('no', 'SecurityError'); };")
        page.open("model=gpt2&gpu=t4&lang=en")
        page.ask_again("bert-large")
        assert page.answer() == native("--model", "bert-large", "--gpu", "t4")["out"] and "gpt2" in page.js("location.hash")
        page.js(NO_CLIPBOARD)
        page.click("#link")
        page.until("document.querySelector('#link + .copied').textContent")
        assert page.js("document.getElementById('address').value").endswith("#model=bert-large&gpu=t4&lang=en")
        page.browser("Page.removeScriptToEvaluateOnNewDocument", identifier=stub["identifier"])

    def it_answers_in_a_frame_without_an_address():
        """As a notebook shows HTML."""
        page.browser("Page.navigate", url="about:blank")
        page.until("location.href === 'about:blank'")
        page.js(f"(() => {{ const frame = document.createElement('iframe'); frame.srcdoc = {json.dumps(built.page.read_text(encoding='utf-8'))}; document.body.append(frame); }})()")
        there = "document.querySelector('iframe').contentDocument"
        page.until(f"{there}?.getElementById('answer')?.getAttribute('aria-busy') === 'false'")
        assert page.js(f"{there}.getElementById('text').textContent") == native("--model", "llama-3.1-8b", "--gpu", "rtx-4090")["out"]

    def a_word_that_no_list_has_is_refused_as_natively():
        for field, word in (("method", "dora"), ("task", "<b>"), ("engine", "tgi"), ("framework", " jax"), ("precision", "__proto__")):
            page.ask(model="gpt2", gpu="t4", **{field: word})
            assert page.text("#wrong") == refusal("--model", "gpt2", "--gpu", "t4", f"--{field}", word.strip()) and "is unknown" in page.text("#wrong"), field
            assert f"{field}=" in page.js("location.hash")
        page.js("(() => { document.getElementById('answer').setAttribute('aria-busy', 'true'); location.hash = 'model=gpt2&gpu=t4&method=dora&lang=en'; })()")
        page.answered()
        assert "dora" in page.text("#wrong")

    def the_command_gives_this_answer():
        for lang in ("en", "zh"):
            page.open(f"model=gpt2&gpu=t4&lang={lang}")
            assert built.natively(shlex.split(page.text("#command"))[1:])["out"] == page.text("#text") == native("--model", "gpt2", "--gpu", "t4", lang=lang)["out"]
        for options in ("--lang zh", "--lang=zh", "--json"):
            page.ask(model="gpt2", gpu="t4", options=options)
            assert page.text("#wrong") == f"{options.split('=')[0].split()[0]} is the page's own option: leave it out." and not page.shown("#typed")

    def a_nul_ends_no_name():
        page.open("model=gpt2%00evil&gpu=t4&lang=en")
        assert "NUL" in page.text("#wrong") and not page.shown("#typed")

    def without_a_model_it_asks_for_one():
        for lang, words in (("en", "Choose a model or a config.json."), ("zh", "请选择模型或 config.json。")):
            page.open(f"gpu=t4&lang={lang}")
            assert page.text("#line") == words and not page.shown("#wrong") and not page.shown("#typed")
        page.ask(gpu="t4", options="--model=gpt2")
        assert page.answer() == native("--gpu", "t4", "--model=gpt2")["out"]

    def the_line_has_the_colour_of_its_own_answer():
        page.ask(model="gpt2", gpu="t4")
        assert page.js("document.getElementById('line').className") == "fits"
        page.ask_again("lama")
        assert page.shown("#wrong") and page.js("document.getElementById('line').className") == ""
        page.ask(model="gpt2", memory="1GB,80GB")
        assert page.text("#line") == "" and page.answer() == native("--model", "gpt2", "--memory", "1GB,80GB")["out"]

    def a_servers_ways_have_names_and_commands():
        question = ("--model", "llama-3.1-8b", "--gpu", "t4", "--engine", "vllm")
        page.ask(model="llama-3.1-8b", gpu="t4", engine="vllm")
        changed = json.loads(native(*question, "--json")["out"])["serving"]["changed"]
        names = page.js("[...document.querySelectorAll('#ways .name')].map(e => e.firstChild.textContent)")
        assert names == ["as it is", *(f"change {i}: {way['what']}" for i, way in enumerate(changed, 1))] and len(names) > 2, names
        code = page.text("#code").splitlines()
        assert code == changed[0]["write"] and all(line in page.text("#text") for line in code), code
        assert page.shown("#write") and not page.shown("#frameworks") and not page.shown("#steps")
        page.ask(model="llama-3.1-8b", gpu="rtx-4090")
        assert page.shown("#frameworks")

    def a_files_name_and_size_are_its_own():
        page.ask(gpu="t4")
        page.drop(written("a\u202eb\x1b.json", b" " * 3_000_000))
        assert page.text("#config-says").startswith("a\\U0000202eb\\U0000001b.json, 3000000 bytes"), page.text("#config-says")
        page.js("(() => { const all = new DataTransfer(); all.items.add(new File(['{}'], 'a')); all.items.add(new File(['{}'], 'b'));"
                " document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: all, bubbles: true, cancelable: true })); })()")
        assert page.text("#wrong") == "Drop one file: these are 2." and not page.shown("#typed")

    def a_list_says_what_is_usual():
        page.open("lang=zh")
        assert page.js("document.querySelector('[name=method]').options[0].textContent") == "（默认：full）"
        page.click("#language")
        assert page.js("['method', 'engine', 'framework', 'optim'].map(name => document.querySelector(`[name=${name}]`).options[0].textContent)") == [
            "(default: full)", "(default: pytorch)", "(default: trainer)", "(default)"]
        page.answered()

    return [an_address_that_cannot_be_written_is_no_end, it_answers_in_a_frame_without_an_address, a_word_that_no_list_has_is_refused_as_natively,
            the_command_gives_this_answer, a_nul_ends_no_name, without_a_model_it_asks_for_one, the_line_has_the_colour_of_its_own_answer,
            a_servers_ways_have_names_and_commands, a_files_name_and_size_are_its_own, a_list_says_what_is_usual]
