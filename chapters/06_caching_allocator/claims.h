#pragma once
// Folk advice about fragmentation, caches and freeing, put to the test; and why a row ran out of memory.

#include "allocators.h"
#include "demos.h"

namespace oomlab::caching_allocator {

// The size at which allocators are talked about: GPT-2, 8 texts of up to 1,024 tokens.
inline constexpr std::size_t kClaimBatch = 8, kClaimSeq = 1024;
inline constexpr const char* kClaimSize = "gpt2, batch 8, up to 1,024 tokens";
inline std::vector<std::size_t> claim_lengths(bool varying) {
  std::vector<std::size_t> lengths;
  for (std::size_t k = 0; k < kRound; ++k) lengths.push_back(length_of(k, kClaimSeq, varying));
  return lengths;
}
/// Best fit with these requests, for two rounds ("epochs") of eight steps: see replay(). Worked out once a program.
struct Gpt2Requests {
  Replayed varying, one_length, emptied_each_round, emptied_each_step;
  std::size_t smallest_limit = 0;  ///< bytes, with texts of many lengths
};
inline const Gpt2Requests& gpt2_requests() {
  static const Gpt2Requests result = [] {
    const nn::TransformerSpec spec = nn::parse_transformer("gpt2");
    const auto many = claim_lengths(true), one = claim_lengths(false);
    return Gpt2Requests{replay(spec, kClaimBatch, many), replay(spec, kClaimBatch, one),
                        replay(spec, kClaimBatch, many, kUnlimited, kRound),
                        replay(spec, kClaimBatch, many, kUnlimited, 1), smallest_limit(spec, kClaimBatch, many)};
  }();
  return result;
}

/// A message that people ask about: tried to allocate 870.00 MiB, of 23.70 GiB 19.18 GiB are allocated, 21.70 GiB
/// reserved, and 323.81 MiB free on the device. PyTorch had given its whole free segments back before it said so.
inline OutOfMemoryReport message_of_a_24_gib_card() {
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  OutOfMemoryReport report;
  report.requested = report.requested_rounded = std::size_t(870.00 * kMiB);
  report.device_total = std::size_t(23.70 * kGiB);
  report.device_free = std::size_t(323.81 * kMiB);
  report.live = report.live_requested = std::size_t(19.18 * kGiB);
  report.reserved = std::size_t(21.70 * kGiB);
  report.cache_released = true;
  return report;
}

/// 1 when the variant got its one block under the budget, 0 when it ran out of memory.
inline std::function<std::optional<double>(const Results&)> served(const Config& config, const std::string& name) {
  return [limited = config.budget != kUnlimited, name](const Results& results) -> std::optional<double> {
    const VariantResult* const found = results.find(name);
    if (!found || !limited) return std::nullopt;
    return found->outcome == VariantResult::Outcome::ok ? 1 : 0;
  };
}

inline std::vector<Claim> claims_of(const Config& config) {
  using Measured = std::optional<double>;
  const auto wasted = [](const Results& r) -> Measured {
    return saved(r.value("best fit", figures::peak), r.value("best fit", figures::reserved));
  };
  const auto reserved_ratio = [](Replayed Gpt2Requests::*a, Replayed Gpt2Requests::*b) {
    const auto peak = [](Replayed Gpt2Requests::*of) { return double((gpt2_requests().*of).reserved_peak); };
    return [=] { return ratio(peak(a), peak(b)); };
  };
  return {
      {.text = "a request smaller than the free memory succeeds",
       .what = "whether best fit serves a quarter of its budget while more is free in pieces (1: yes)",
       .range = exactly(1),
       .measure = served(config, "in pieces, best fit")},
      {.text = "moving free pages makes one block of the pieces",
       .what = "whether ours serves the same request (1: yes)",
       .range = exactly(1),
       .measure = served(config, "in pieces, ours")},
      {.text = "cudaMallocManaged cures fragmentation",  // article 20
       .what = "whether best fit over managed memory serves the same request (1: yes)",
       .range = exactly(1),
       .measure = served(config, "in pieces, managed")},
      {.text = "870 MiB refused, 19.18 GiB allocated, 21.70 GiB reserved: that is fragmentation",  // article 9
       .what = "whether the rule of bench/explain says so (1: yes)",
       .range = exactly(1),
       .size = "a card of 23.70 GiB with 323.81 MiB free",
       .at_size = [] { return message_of_a_24_gib_card().cause() == OutOfMemoryReport::Cause::fragmented; }},
      {.text = "a caching allocator wastes a third of the memory",
       .what = "share of what best fit reserves at its peak that is not live",
       .range = at_least(0.33),
       .size = kClaimSize,
       .at_size =
           [] {
             const Replayed& r = gpt2_requests().varying;
             return saved(double(r.live_peak), double(r.reserved_peak));
           },
       .measure = wasted,
       .here = "segments of 20 MiB are large for so small a model"},
      {.text = "reserved, not allocated, decides whether it fits",  // article 11
       .what = "smallest budget that survives / reserved without a budget, best fit",
       .range = exactly(1),
       .size = kClaimSize,
       .at_size =
           [] { return ratio(double(gpt2_requests().smallest_limit), double(gpt2_requests().varying.reserved_peak)); }},
      {.text = "texts of many lengths reserve less than padded ones",  // article 33
       .what = "peak reserved, eight lengths / all of the longest, best fit",
       .range = at_most(0.95),
       .size = kClaimSize,
       .at_size = reserved_ratio(&Gpt2Requests::varying, &Gpt2Requests::one_length),
       .measure = [](const Results& r) { return r.ratio("best fit", "one length, best fit", figures::reserved); }},
      {.text = "empty_cache() after every epoch lowers the peak",  // article 12
       .what = "peak reserved, emptied after each round of 8 steps / never, best fit",
       .range = at_most(0.99),
       .size = kClaimSize,
       .at_size = reserved_ratio(&Gpt2Requests::emptied_each_round, &Gpt2Requests::varying)},
      {.text = "empty_cache() after every step lowers the peak",  // article 12
       .what = "peak reserved, emptied after each step / never, best fit",
       .range = at_most(0.99),
       .size = kClaimSize,
       .at_size = reserved_ratio(&Gpt2Requests::emptied_each_step, &Gpt2Requests::varying),
       .measure = [](const Results& r) { return r.ratio("best fit, emptied", "best fit", figures::reserved); },
       .here = "so small a model never needs a third segment of 20 MiB"},
      {.text = "empty_cache() after every step costs nothing",  // article 12
       .about = About::time,
       .what = "samples/s, emptied after each step / never, best fit",
       .range = at_least(0.99),
       .measure = [](const Results& r) { return r.ratio("best fit, emptied", "best fit", figures::speed); }},
      {.text = "empty_cache() gives all memory back that is not live",
       .what = "bytes given back / reserved and not live, ours",
       .range = exactly(1),
       .measure = [](const Results&) -> Measured {
         const auto e = empty_cache_with_live_blocks();
         return e ? ratio(double(e->given), double(e->reserved - e->live)) : std::nullopt;
       }},
      {.text = "reserved stays after `del` and empty_cache()",  // article 10
       .what = "reserved after `del` of a 512 x 4096 tensor and of its product, and empty_cache() / before, best fit",
       .range = exactly(1),
       .measure = [](const Results&) { return ratio(double(printout().without_both), double(printout().reserved)); },
       .holds_where = [] { return "holds while another tensor of the segment is alive"; }},
      {.text = "a 512 x 4096 tensor takes 8.39 G",  // article 10
       .what = "MB of 512 x 4096 floats",
       .range = between(8380, 8400),
       .measure = [](const Results&) { return double(printout().x) / 1e6; }},
      {.text = "it makes no difference when a tensor is freed (`del`)",  // article 12
       .what = "peak of a chain of layers, without `del` / with it",
       .range = exactly(1),
       .measure = [](const Results&) { return ratio(double(chain_peak(false)), double(chain_peak(true))); }},
      {.text = "gc.collect() frees device memory",  // article 12
       .what = "MiB freed of two tensors of 4 MiB that nobody refers to any more",
       .range = at_least(1),
       .measure =
           [](const Results&) {
             const Collected c = two_tensors(false);
             return double(c.after_del - c.after_collect) / (1 << 20);
           },
       .holds_where =
           [] {
             const Collected c = two_tensors(true);
             return fmt::format("holds for tensors in a reference cycle: {} of {}",
                                format_bytes(c.after_del - c.after_collect), format_bytes(c.after_del));
           }},
  };
}

inline const char* why(const OutOfMemoryReport& report) {
  switch (report.cause()) {
    case OutOfMemoryReport::Cause::fragmented: return "fragmentation";
    case OutOfMemoryReport::Cause::live:
    case OutOfMemoryReport::Cause::too_big: return "live tensors fill the budget";
    default: return "see the message";
  }
}

/// Why rows ran out of memory, and what freeing and emptying came to.
inline void tell_pieces(const Results& results, Report& report) {
  Table refused{"refused",
                "out of memory, and why",
                {{"row"},
                 {"asked", Unit::bytes},
                 {"live", Unit::bytes},
                 {"reserved", Unit::bytes},
                 {"free inside", Unit::bytes},
                 {"largest piece", Unit::bytes},
                 {"cause"}}};
  for (const VariantResult& r : results) {
    if (!r.oom) continue;
    const OutOfMemoryReport& o = *r.oom;
    const std::size_t cached = o.reserved > o.live ? o.reserved - o.live : 0;
    refused.rows.push_back({r.name, o.requested_rounded, o.live, o.reserved, cached, o.largest_free_block, why(o)});
  }
  if (!refused.rows.empty()) report.table(refused);
  if (std::string(backend_name()) == "host")
    report.line("cudaMallocAsync reserves here as the host runtime's pool does; on a GPU the driver decides");
  const Gpt2Requests& gpt2 = gpt2_requests();
  Table emptied{"emptied",
                fmt::format("{}, 2 rounds of 8 steps through best fit:", kClaimSize),
                {{"when"},
                 {"live peak", Unit::bytes},
                 {"reserved", Unit::bytes},
                 {"calls of cudaMalloc and cudaFree", Unit::count}}};
  for (const auto& [when, replayed] : {std::pair("without empty_cache()", &gpt2.varying),
                                       std::pair("with it after each round", &gpt2.emptied_each_round),
                                       std::pair("with it after each step", &gpt2.emptied_each_step)})
    emptied.rows.push_back({when, replayed->live_peak, replayed->reserved_peak, replayed->driver_calls});
  report.table(emptied);
  const Printout p = printout();
  report.table({"freeing",
                "tensors that are freed, one after the other, through best fit:",
                {{"what"}, {"bytes", Unit::bytes}},
                {{"512 x 4096 floats", p.x},
                 {"live with their 512 x 512 product", p.both},
                 {"reserved for both", p.reserved},
                 {"reserved after `del x` and empty_cache()", p.without_x},
                 {"reserved after `del product`, too", p.without_both},
                 {"a chain of layers, at its peak", chain_peak(false)},
                 {"the same with `del` of each input before the next layer", chain_peak(true)}}});
}

}  // namespace oomlab::caching_allocator
