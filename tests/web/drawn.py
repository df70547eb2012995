"""Questions drawn at random: each a command line, and the files that it names. Most are good ones, some are refused, and some of the
files are damaged or mean no good."""
import json
import random

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072,
         "tie_word_embeddings": True, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu"}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
BERT = {"model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 30522,
        "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_act": "gelu"}
HOSTILE = (b"", b"{", b"[]", b"null", b"\xff\xfe{}", b'{"model_type": "llama"', b"[" * 5000, b'{"a":' * 5000 + b"1" + b"}" * 5000, b" " * (1 << 20) + b" {}",
           b'{"model_type": "<script>alert(1)</script>"}', b'{"model_type": "\\u001b[31m\\u202e"}', b'{"model_type": "llama", "hidden_size": 1e999}',
           b'{"model_type": "llama", "hidden_size": 18446744073709551615, "num_hidden_layers": 18446744073709551615}', b"\0\0\0\0", b'{"a": "\xc0\xaf"}')
# Values in which something overflows, or that nobody allows.
ODD = {"batch": ("0", "-1", "1e3", "1000001", "99999999999999999999", "４"), "seq": ("0", "x", "1073741825", "4294967296"), "gpus": ("0", "1025", "4x", "x", "2xt4x"),
       "memory": ("0", "1GB", "4294967296", "17179869184GiB", "1e9", "12  GB", "24", "-1GB", "9999999999999999999999TB"), "gpu": ("a1000", "<b>", "'", "$(reboot)"),
       "host-memory": ("1B", "18446744073709551615", "18446744073709551616", "none"), "model": ("lama-3", "gpt:0-0-0", "gpt:4294967296-1-1", "llama:1-2", "<img src=x>", "\x1b[2J")}


def config(draw):
    good = dict(draw.choice((LLAMA, LLAMA, GPT2, BERT)))
    kind = draw.random()
    if kind < 0.35:
        return json.dumps(good).encode()
    if kind < 0.55:
        return draw.choice(HOSTILE)
    key = draw.choice(sorted(good))
    good[key] = draw.choice((0, 1, -1, 3, 2 ** 31, 2 ** 32, 2 ** 32 + 1, 2 ** 40, 2 ** 63, 2 ** 64 - 1, 1.5, "4", None, True, [], {}, good[key]))
    text = json.dumps(good).encode()
    return text if kind < 0.85 else text[:draw.randrange(len(text))] + bytes([draw.randrange(256)]) + text[draw.randrange(len(text)):]


def question(number, seed, listed, most_cards, folder):
    """(words, files) of question `number`; the same ones for the same seed."""
    draw = random.Random(f"{seed} {number}")
    words, files = [], {}

    def say(option, value):
        words.extend((f"--{option}", value))

    def perhaps(chance, option, values):
        if draw.random() < chance:
            say(option, draw.choice(values))
    if draw.random() < 0.2:
        path = f"{folder}/config-{number}.json"
        files[path] = config(draw)
        say("config", path)
    else:
        say("model", draw.choice(listed["models"] + ["llama-3.1-8b", "gpt2", "gpt:12-12-768", "unet:4-64", "resnet:3-16"]))
    perhaps(0.7, "gpu", [card["name"] for card in listed["cards"]])
    if draw.random() < 0.4:
        say("memory", draw.choice(("8GB", "16GB", "23.5GiB", "80GB", "141GB", "8GB,24GB", "6000000000")))
    perhaps(0.3, "gpus", [str(n) for n in (1, 2, 4, 8, 16, 64) if n <= most_cards])
    perhaps(0.6, "batch", ("1", "2", "3", "8", "12", "64"))
    perhaps(0.5, "seq", ("128", "512", "1000", "2048", "4096"))
    perhaps(0.3, "host-memory", ("64GB", "256GB", "2TB", "4294967296"))
    chances = {"--method": 0.3, "--task": 0.3, "--lang": 0.4, "--framework": 0.4}
    for option, known in listed["words"].items():
        if draw.random() < chances.get(option, 0.08):
            words.extend((option, draw.choice(known)))
    for flag, chance in (("--gradient-checkpointing", 0.15), ("--expandable-segments", 0.1), ("--enforce-eager", 0.03), ("--all", 0.2)):
        if draw.random() < chance:
            words.append(flag)
    perhaps(0.08, "gradient-accumulation", ("2", "5"))
    perhaps(0.05, "lora-rank", ("1", "64", "65536"))
    perhaps(0.05, "without", ("offload", "offload,stochastic", "nothing"))
    perhaps(0.05, "fragmentation", ("0", "12.5%", "91"))
    perhaps(0.05, "host-bandwidth", ("51.2", "0.1"))
    perhaps(0.05, "weights", ("bf16", "fp8", "q4_k_m", "awq"))
    if draw.random() < 0.12:
        option = draw.choice(sorted(ODD))
        say(option, draw.choice(ODD[option]))
    return words, files
