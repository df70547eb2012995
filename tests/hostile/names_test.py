#!/usr/bin/env python3
"""Names of cards and models as people type them: names_test.py ROOT PROGRAMS [--tries N]

  - Parts of names are no names; what is unknown is answered in one line, with the nearest.
  - However a name is spelled (capitals, blanks, dashes), the answer is the same.
  - Names with a letter put in, taken out or replaced: an answer that says which card it took, or one line and 64.
"""
import json
import random
import re
import sys

import tries

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 -.,_"
TINY = ["--model", "gpt:1-1-8", "--seq", "8"]


def spelled(draw, name):
    """The same name, as somebody else types it."""
    word = "".join(draw.choice((c, c.upper())) for c in name).replace("-", draw.choice(("", " ", "-", "_")))
    return draw.choice(("", "NVIDIA ", "nvidia geforce ")) + word


def damaged(draw, name):
    at, letter = draw.randrange(len(name)), draw.choice(ALPHABET)
    return draw.choice((name[:at] + letter + name[at:], name[:at] + name[at + 1:], name[:at] + letter + name[at + 1:], name[:at]))


def main():
    arguments = tries.arguments(tries=150)
    fit, chapter = arguments.programs / "fit", arguments.programs / "03_mixed_precision"
    if not fit.exists() or not chapter.exists():
        print("fit or chapter 03 is not built")
        return 77
    sys.path.insert(0, str(arguments.root / "bench"))
    from publishing import pages
    cards = [card["name"] for card in pages.cards(arguments.root)]
    draw = random.Random(38)

    def ask(name):
        return tries.check(tries.attempt([fit, *TINY, "--gpu", name, "--json"]))

    for part in ("rtx40", "h2", "a1", "l", "rtx-50", "4090 laptop", "100"):
        tries.refused(ask(part), "is unknown; nearest: ", "--memory")
    for amd in ("mi300x", "MI250", "Radeon RX 7900 XTX"):
        tries.refused(ask(amd), "AMD's", "--memory")
    tries.refused(tries.attempt([chapter, "--plan", "--quick", "--card", "rtx40"]), "--card 'rtx40' is unknown; nearest: ")
    tries.refused(tries.attempt([chapter, "--plan", "--model", "BERT-Lage"]), "nearest: bert-large")
    tries.refused(tries.attempt([fit, "--model", "gtp2", "--gpu", "t4"]), "the nearest: openai-community/gpt2,")

    # A published model in capitals brings its own batch and budget, and is echoed as it is written here.
    plans = [tries.check(tries.attempt([chapter, "--plan", "--model", model, "--card", card])).out
             for model, card in (("bert-large", "h100-sxm"), ("BERT-Large", "H100"))]
    assert plans[0] == plans[1] and "bert-large" in plans[0], "\n".join(plans)

    taken = refused = 0
    for _ in range(arguments.tries):
        name = draw.choice(cards)
        if draw.random() < 0.4:
            answer = json.loads(ask(spelled(draw, name)).out)
            assert answer["card"] == name, f"{name}: {answer['card']}"
            continue
        word = damaged(draw, name)
        if not word.strip():
            continue
        outcome = ask(word)
        if outcome.code == 64:
            assert len(outcome.err.splitlines()) == 1 and re.search("nearest: |AMD's", outcome.err), f"{word}: {outcome.err}"
            refused += 1
        else:
            assert json.loads(outcome.out)["card"] in cards, word
            taken += 1
    print(f"{taken} damaged names are other names, {refused} are refused")
    assert refused > taken
    return 0


if __name__ == "__main__":
    sys.exit(main())
