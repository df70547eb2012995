"""Which sentence names the cause of a message: for bench/explain."""

import re

# Facts of a message that are the cause in themselves: by the fact, the sentence.
BY_FACT = {
    "host_memory": (("compiler_refused", "why_compiler_refused"), ("compiler", "why_compiler"), ("evicted", "why_evicted"), ("swap", "why_swap"), ("object_store", "why_object_store"), ("page_file", "why_page_file"), ("node", "why_node"), ("manager", "why_limit_of_job"), ("cgroup", "why_cgroup"), ("pinned_llama", "why_pinned_llama"), ("pinned", "why_pinned"),
                    ("bus", "why_shared_bus"), ("shared_memory", "why_shared"), ("tensorflow_pool", "why_host_pool"), ("mac", "why_killed_mac"), ("invoked", "why_invoked"), ("killed_on_card", "why_killed_on_card"), ("only_killed", "why_killed"), ("addresses", "why_addresses")),
    "kv_cache_or_pool_reservation": (("retracted", "why_retracted"), ("prefill", "why_prefill"), ("pages", "why_pages"), ("pages_prefill", "why_pages_prefill"), ("token_pool", "why_token_pool"), ("cells", "why_cells"),
                                     ("workspace", "why_workspace"), ("weights_and_buffer", "why_weights_and_buffer"), ("tokens", "why_cache_tokens"),
                                     ("pool_took_all", "why_pool_took_all")),
    "other_process": (("unbalanced", "why_unbalanced"),),
    "not_enough_information": (("whose", "why_whose"), ("nvml", "why_nvml"), ("dispatched", "why_dispatched"), ("unified", "why_unified"), ("perhaps_memory", "why_perhaps"),
                               ("cut_off", "why_cut_off_asked"), ("cut_off", "why_cut_off"), ("copy", "why_copy"), ("builder", "why_builder")),
    "limit_set_by_user": (("adaptor", "why_limit_adaptor"), ("segment_reserve", "why_limit_segment")),
}


def causes(explanation):
    """[(key of words.TEXT, more values)], the sentence first."""
    e = explanation
    facts, diagnosis = e.found.message.facts, e.diagnosis
    by_fact = next((key for fact, key in BY_FACT.get(diagnosis, ()) if fact in facts and needs(e, key)), None)
    if by_fact:
        return [(by_fact, {})]
    named = {"too_big_for_the_card": too_big, "live_tensors_fill_it": live, "fragmentation": fragments, "other_process": others,
             "limit_set_by_user": above_limit, "host_memory": host, "kv_cache_or_pool_reservation": reservation}.get(diagnosis, nothing)
    return named(e)


def needs(e, key):
    """Whether the figures that a sentence names are known."""
    return {"why_swap": e.known("asked", "within"), "why_workspace": e.known("asked", "within"), "why_weights_and_buffer": e.known("weights", "temporaries", "within"),
            "why_host_pool": e.known("asked"), "why_cut_off_asked": e.known("asked"), "why_limit_adaptor": e.known("asked"), "why_limit_segment": e.known("asked"), "why_token_pool": e.known("tokens_wanted", "tokens_held"), "why_cache_tokens": e.known("tokens_wanted", "tokens_held")}.get(key, True)


def percent_text(percent):
    return f"{max(percent, 0.1):.1f}" if percent < 10 else f"{percent:.0f}"


def too_big(e):
    if e.account.impossible():
        return [("why_impossible", {})]
    if e.found.message.rule == "mps_buffer" and e.known("asked"):
        return [("why_buffer_mps", {})]
    return [("why_too_big_program" if "whole_program" in e.found.message.facts else "why_too_big" if e.known("asked", "capacity") else
             "why_too_big_limit" if e.known("asked", "limit") else "why_too_big_any", {})]


def live(e):
    short, percent = e.missing("asked", "free", "cached"), e.percent()
    family = e.found.message.rule.split("_")[0]
    if e.account.spilled():
        return [("why_spilled", {})]
    if e.one_request() and family != "julia":
        return [("why_one_request", {})]
    if not e.account.pieces_count() and e.known("allocated", "free", "asked") and not short:
        return [("why_live_pieces", {})]
    if family == "julia" and short and e.known("allocated", "capacity"):
        return [("why_live_arrays", {"short": e.shown(short), "percent": percent_text(percent)}), ("why_live_sum", {"short": e.shown(short)})]
    if short and e.known("allocated", "capacity") and e.is_small():
        return [("why_live_last", {"short": e.shown(short)}), ("why_live_sum", {"short": e.shown(short)})]
    if short and e.known("allocated", "capacity"):
        return [("why_live", {"short": e.shown(short), "percent": percent_text(percent)}), ("why_live_sum", {"short": e.shown(short)})]
    if e.known("limit", "allocated", "asked"):
        return [("why_limit_mps" if e.known("other_allocations") else "why_live_pool", {})]
    short = e.missing("asked", "free")
    if short and e.known("allocated") and percent:
        return [("why_live_paddle" if family == "paddle" else "why_live_free", {"short": e.shown(short), "percent": percent_text(percent)})]
    return [("why_live_card" if e.known("allocated", "capacity", "asked") and "free" not in e.account.sizes else "why_live_any" if short else "why_live_alone", {})]


def fragments(e):
    sizes = e.account.sizes
    full = e.known("allocated", "capacity") and sizes["allocated"].bytes * 10 >= sizes["capacity"].bytes * 9
    key = ("why_fragments_full" if full else "why_fragments") if e.known("cached", "free", "asked") else "why_fragments_any" if e.known("asked") else "why_fragments_alone"
    return [(key, {}), *([("why_pieces", {})] if e.known("cached", "asked") else [])]


def above_limit(e):
    sizes = e.account.sizes
    if e.known("asked", "limit", "allocated", "other_allocations"):
        return [("why_limit_mps", {})]
    if not e.known("asked", "limit"):
        return [("why_limit_within" if e.known("asked", "within") else "why_limit_asked" if e.known("asked") else "why_limit_any", {})]
    if sizes["asked"].bytes > sizes["limit"].bytes:
        return [("why_limit_alone", {})]
    for held in [sizes[name] for name in ("allocated", "reserved") if name in sizes]:
        short = held + sizes["asked"] - sizes["limit"]
        if short and short.bytes > 0:
            free = "free" in sizes and sizes["free"].bytes >= sizes["asked"].bytes
            alike = e.shown_alike(held=held, asked=sizes["asked"], limit=sizes["limit"], short=short)
            return [("why_limit_free" if free else "why_limit", alike)]
    return [("why_limit_any", {})]


def others(e):
    sizes = e.account.sizes
    if "at_start" in e.found.message.facts:
        return [("why_others_start", {"used": e.shown(sizes["capacity"] - sizes["free"])})]
    if e.context.same_device:
        return [("why_same_device", {"ranks": e.ranks(), "device": e.found.message.device})]
    held = e.account.held_by_others()
    if held is None or not e.known("capacity", "allocated", "asked"):
        return [("why_others_any", {})]
    needed = e.shown(sizes["allocated"] + sizes["asked"])
    if "others" in sizes:
        return [("why_others", {"needed": needed})]
    if "outside" in sizes:
        return [("why_others_outside", {"needed": needed})]
    return [("why_others", {"others": e.shown(sizes["capacity"] - sizes["free"] - sizes["this_process"]), "needed": needed})]


def others_known(e):
    """Whether it is said already that nobody else holds the card."""
    return "listed_is_this" in e.found.message.facts


def host(e):
    message = e.found.message
    if e.context.call == "pinned":
        return [("why_pinned", {})]
    if e.account.impossible():
        return [("why_impossible", {})]
    if message.rule == "loader":
        return [("why_worker_gone", {})]
    if message.rule == "killer":
        return [("why_host_victim" if e.known("resident") and "victim" in message.values else "why_host_killed_unit" if "unit" in message.facts else "why_host_killed", {})]
    return [("why_host_within" if e.known("asked", "within") else "why_host_asked" if e.known("asked") else "why_host", {})]


def reservation(e):
    facts = e.found.message.facts
    short = e.missing("asked", "free") if "at_start" in facts else None
    if "component" in facts and e.found.message.values["component"] == "-":
        return [("why_component_unsaid", {})]
    if "component" in facts and e.known("free", "capacity"):
        sizes, component = e.account.sizes, e.found.message.values["component"]
        rest = sizes["capacity"] - sizes["free"] - sizes["weights"] if e.known("weights") else None
        if rest is None or component.lower() != "kv cache":
            return [("why_component_free", {})]
        return [("why_component", {"rest": e.shown(rest), "component": component if e.language == "en" else "KV 缓存"})]
    if short and e.known("capacity"):
        return [("why_start", {"short": e.shown(short)})]
    if "kv_cache" in facts and e.known("asked"):
        return [("why_cache_size_ollama" if e.context.engine == "ollama" else "why_cache_size", {})]
    if e.known("asked", "within"):
        return [("why_cache_within", {})]
    return [("why_warm_up" if re.search(r"warming\s+up|warm-?up", e.found.message.text, re.I) else "why_cache", {})]


def nothing(e):
    sizes, facts = e.account.sizes, e.found.message.facts
    if "whole_model" in facts and e.known("asked", "free"):
        return [("why_whole_model", {})]
    if e.known("asked", "free") and sizes["free"].bytes >= sizes["asked"].bytes:
        return [("why_enough_free", {}), *([("why_contradicts", {})] if e.account.contradicts else [])]
    if e.account.contradicts:
        return [("why_contradicts", {})]
    if "compute_buffer" in facts:
        return [("why_compute_buffer" if e.known("asked") else "why_compute_unsaid", {})]
    if "weights_buffer" in facts and e.known("asked"):
        return [("why_weights_buffer" if re.search("error loading model|load_tensors", e.found.message.text) else "why_buffer", {})]
    if e.known("asked", "program", "arguments", "temporaries"):
        whole = abs(sizes["asked"].bytes - sizes["temporaries"].bytes) <= sizes["temporaries"].half
        parts = "why_program_size" if e.known("outputs") else "why_program_parts"
        return [(f"{parts}_temporaries" if whole else parts, {})]
    if e.known("asked"):
        short = e.missing("asked", "free")
        if "pool" in facts:
            return [("why_pool", {})]
        if "whole_program" in facts and short:
            return [("why_program_free", {"short": e.shown(short)})]
        if e.found.message.rule == "cupy" and e.known("allocated"):
            return [("why_cupy", {})]
        if e.known("capacity"):
            key = "why_card_mapping" if e.found.message.rule == "pytorch_map" else "why_card_free" if short else "why_card"
            return [(key, {"short": e.shown(short)} if short else {}), *([("note_retyped", {})] if e.found.message.rule == "pytorch" else [])]
        return [("why_free", {"short": e.shown(short)})] if short else [("why_some", {})]
    if sizes:
        return [("why_printed", {})]
    return [("why_unread" if re.search(r"\d[.,]?\d{0,20}\s?(?:[KMGT]i?B|bytes)\b", e.found.message.text) else "why_none", {})]
