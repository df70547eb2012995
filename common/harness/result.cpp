#include "harness/result.h"

#include <fmt/format.h>

#include "harness/timing.h"
#include "plan/bytes.h"
#include "plan/json_writer.h"

namespace oomlab {
namespace {

// In the order of the enumerators.
constexpr const char *kOutcomes[] = {"ok", "oom", "skipped"},
                     *kAgreements[] = {"bit-equal", "within tolerance", "differs by design"};
const char* name_of(VariantResult::Outcome outcome) { return kOutcomes[static_cast<int>(outcome)]; }
const char* name_of(Agreement::Kind kind) { return kAgreements[static_cast<int>(kind)]; }

std::string numerics_cell(const VariantResult& v) {
  if (v.baseline) return "baseline";
  if (!v.compared) return "-";
  if (!v.agrees) return "DISAGREES";
  if (v.agreement.kind == Agreement::Kind::within_tolerance) return fmt::format("within {:.0e}", v.agreement.tolerance);
  return name_of(v.agreement.kind);
}

std::string error_cell(const VariantResult& v) {
  if (!v.measured) return "-";
  const auto error = static_cast<long long>(v.peak_allocated) - static_cast<long long>(v.predicted_peak());
  return error == 0 && !v.prediction_holds() ? "split" : fmt::format("{}", error);
}

bool uses_host_memory(const VariantResult& v) { return v.predicted_on_host != HostBytes{} || v.on_host != HostBytes{}; }

std::string error_cell_on_host(const VariantResult& v) {
  if (!v.measured || !uses_host_memory(v)) return "-";
  const auto error = static_cast<long long>(v.on_host.total()) - static_cast<long long>(v.predicted_on_host.total());
  return error == 0 && !v.prediction_holds_on_host() ? "split" : fmt::format("{}", error);
}

void write_split(JsonWriter& json, const char* name, const ByCategory& split) {
  json.key(name).begin_object();
  for (std::size_t c = 0; c < kCategoryCount; ++c) json.member(name_of(static_cast<Category>(c)), split.bytes[c]);
  json.end_object();
}

void write_on_host(JsonWriter& json, const HostBytes& predicted, const HostBytes& measured, bool is_measured) {
  if (predicted == HostBytes{} && measured == HostBytes{}) return;
  json.key("host_memory").begin_object().member("predicted_bytes", predicted.total());
  if (is_measured) {
    json.member("peak_bytes", measured.total());
    write_split(json, "pinned_by_category_bytes", measured.pinned);
    write_split(json, "pageable_by_category_bytes", measured.pageable);
    write_split(json, "managed_by_category_bytes", measured.managed);
  }
  json.end_object();
}

void write_work(JsonWriter& json, const char* name, const std::optional<DeviceWork>& work) {
  if (!work) return;
  json.key(name).begin_object().member("launches", work->launches).member("gemms", work->gemms);
  json.member("gemm_flops", work->gemm_flops);
  json.member("copied_bytes", work->copied_bytes).member("filled_bytes", work->filled_bytes).end_object();
}

// Seconds of a step, as they were measured.
std::optional<double> seconds_of(const VariantResult& v) {
  return v.samples_per_second.empty() ? std::nullopt
                                      : std::optional(static_cast<double>(v.batch) / median(v.samples_per_second));
}

void write_least_time(JsonWriter& json, const RunResult& run, const VariantResult& v) {
  const auto least = least_time_of(run, v);
  if (!least) return;
  json.key("least_time").begin_object().member("card", run.card->name).member("seconds", least->seconds());
  json.member("computing_seconds", least->computing_seconds).member("moving_seconds", least->moving_seconds);
  json.member("moved_bytes", least->moved_bytes);
  if (const auto seconds = seconds_of(v)) json.member("share_of_bound", least->seconds() / *seconds);
  json.end_object();
}

// Decimal units, as peaks and bandwidths have them.
std::string format_decimal(double value, const char* unit) {
  const char* const prefixes[] = {"", "k", "M", "G", "T", "P", "E", "Z", "Y"};
  std::size_t p = 0;
  for (; value >= 999.95 && p + 1 < std::size(prefixes); value /= 1000) ++p;
  return fmt::format("{:.1f} {}{}", value, prefixes[p], unit);
}
std::string format_seconds(double seconds) {
  return seconds >= 0.99995      ? fmt::format("{:.1f} s", seconds)
         : seconds >= 0.99995e-3 ? fmt::format("{:.1f} ms", 1e3 * seconds)
                                 : fmt::format("{:.1f} us", 1e6 * seconds);
}

std::optional<std::size_t> maybe_limit(std::size_t limit) {
  return limit == kUnlimited ? std::nullopt : std::optional(limit);
}

void write_growths(JsonWriter& json, const VariantResult& v) {
  if (v.growths.empty() && !v.growth_looked_for) return;
  json.key("growth").begin_array();
  for (const Growth& g : v.growths) {
    json.begin_object().member("loop", g.loop).key("phase");
    g.phase.empty() ? json.null() : json.value(g.phase);
    json.member("rounds", g.rounds).member("since", g.since).key("found_in");
    g.found_in ? json.value(g.found_in) : json.null();
    json.member("bytes_a_round", g.bytes_a_round).member("exceeds_budget_in", g.exceeds_in).key("tags").begin_array();
    for (const Growth::Tag& tag : g.tags) {
      json.begin_object().member("tag", tag.tag).member("category", name_of(tag.category));
      json.member("bytes_a_round", tag.bytes_a_round).end_object();
    }
    json.end_array();
    if (!v.ranks.empty()) json.member("rank", v.growth_rank);
    json.end_object();
  }
  json.end_array();
}

void write_series(JsonWriter& json, const VariantResult& v) {
  const auto column = [&](const char* name, auto value_of) {
    json.key(name).begin_array();
    for (const StepMemory& step : v.steps) json.value(value_of(step));
    json.end_array();
  };
  json.key("series").begin_object();
  column("allocated_bytes", [](const StepMemory& s) { return s.allocated; });
  column("peak_allocated_bytes", [](const StepMemory& s) { return s.peak_allocated; });
  column("reserved_bytes", [](const StepMemory& s) { return s.reserved; });
  column("device_used_bytes", [](const StepMemory& s) { return s.device_used; });
  json.key("by_category_bytes").begin_object();
  for (std::size_t c = 0; c < kCategoryCount; ++c)
    column(name_of(static_cast<Category>(c)), [c](const StepMemory& s) { return s.at_peak.bytes[c]; });
  json.end_object().key("samples_per_second").begin_array();
  for (const double rate : v.samples_per_second) json.value(rate);
  json.end_array().end_object();
}

void write_variant(JsonWriter& json, const RunResult& run, const VariantResult& v) {
  json.begin_object();
  json.member("name", v.name).member("role", v.baseline ? "baseline" : "mitigation").member("batch", v.batch);
  json.member("outcome", name_of(v.outcome)).key("reason");
  v.reason.empty() ? json.null() : json.value(v.reason);
  json.member("budget_bytes", maybe_limit(run.config.budget)).member("predicted_bytes", v.predicted_peak());
  write_split(json, "predicted_by_category_bytes", v.predicted);
  if (v.flops) json.member("flops", *v.flops);
  write_least_time(json, run, v);
  if (v.measured) {
    json.member("peak_allocated_bytes", v.peak_allocated).member("peak_reserved_bytes", v.peak_reserved);
    json.member("peak_device_used_bytes", v.peak_device_used);
    json.member("device_used_before_bytes", v.device_used_before);
    write_split(json, "by_category_bytes", v.at_peak);
    write_work(json, "work", v.work);
    json.key("phases").begin_array();
    for (const PhasePeak& p : v.phases) {
      json.begin_object().member("name", p.name).member("peak_allocated_bytes", p.peak_allocated);
      json.member("peak_reserved_bytes", p.peak_reserved).member("peak_device_used_bytes", p.peak_device_used);
      write_split(json, "by_category_bytes", p.at_peak);
      json.member("visits", p.visits);
      write_work(json, "work", p.work);
      json.end_object();
    }
    json.end_array();
    if (!v.ranks.empty()) {
      json.key("ranks").begin_array();
      for (const RankResult& r : v.ranks) {
        json.begin_object().member("rank", std::size_t(r.rank)).member("alike", r.alike);
        json.member("predicted_bytes", r.predicted.total()).member("peak_allocated_bytes", r.peak_allocated);
        json.member("peak_reserved_bytes", r.peak_reserved).member("bytes_sent", r.bytes_sent);
        json.member("most_in_flight", r.most_in_flight).member("fingerprint", fmt::format("{:016x}", r.fingerprint));
        write_split(json, "by_category_bytes", r.at_peak);
        write_work(json, "work", r.work);
        if (r.flops) json.member("flops", *r.flops);
        write_on_host(json, r.predicted_on_host, r.on_host, true);
        json.end_object();
      }
      json.end_array();
    }
  }
  write_on_host(json, v.predicted_on_host, v.on_host, v.measured);
  if (!v.ranks.empty() && v.on_host_of_all) json.member("host_memory_of_ranks_bytes", v.on_host_of_all);
  write_growths(json, v);
  if (run.config.series) write_series(json, v);
  if (v.oom) {
    json.key("oom").begin_object().member("requested_bytes", v.oom->requested).member("tag", v.oom->tag);
    json.member("live_bytes", v.oom->live).member("limit_bytes", maybe_limit(v.oom->limit));
    json.member("by_budget", v.oom->by_limit);
    if (v.oom->on_host) json.member("on_host", true);
    json.end_object();
  }
  if (!v.samples_per_second.empty()) {
    const auto& rates = v.samples_per_second;
    json.key("throughput").begin_object().member("unit", "samples/s").member("median", median(rates));
    json.member("p10", quantile(rates, 0.1)).member("p90", quantile(rates, 0.9)).member("repetitions", rates.size());
    if (const auto& reference = v.reference_rates; !reference.empty()) {
      json.key("reference").begin_object().member("median", median(reference));
      json.member("p10", quantile(reference, 0.1)).member("p90", quantile(reference, 0.9)).end_object();
    }
    json.member("within_budget", v.outcome == VariantResult::Outcome::ok).end_object();
  }
  json.key("numerics").begin_object().member("check", name_of(v.agreement.kind)).member("compared", v.compared);
  json.member("agrees", v.agrees).member("largest_relative_difference", v.largest_difference);
  json.key("figures").begin_array();
  for (const double figure : v.figures) json.value(figure);
  json.end_array().member("fingerprint", fmt::format("{:016x}", v.fingerprint)).end_object();
  json.member("largest_batch", v.largest_batch).end_object();
}

}  // namespace

std::string format_limit(std::size_t bytes) { return bytes == kUnlimited ? "none" : format_bytes(bytes); }

std::string oom_line(const OutOfMemoryReport& report) {
  if (report.on_host && !report.by_limit)
    return fmt::format("OOM on the host: asked for {} ({}), which the system does not have",
                       format_bytes(report.requested_rounded), report.tag);
  // Under a budget, what it has left; on the device, what is free there or cached.
  const std::size_t had = report.by_limit
                              ? report.limit - std::min(report.limit, report.limit_used)
                              : report.device_free + (report.reserved - std::min(report.reserved, report.live));
  if (report.cause() == OutOfMemoryReport::Cause::fragmented && report.largest_free_block) {
    // Under a budget, what is free inside of what the allocator holds was not counted above.
    const std::size_t inside = report.by_limit ? report.reserved - std::min(report.reserved, report.live) : 0;
    return fmt::format("OOM: asked for {} ({}), had {} in pieces, the largest {}",
                       format_bytes(report.requested_rounded), report.tag, format_bytes(had + inside),
                       format_bytes(std::max(had, report.largest_free_block)));
  }
  return fmt::format("OOM{}: asked for {} ({}), had {}", report.on_host ? " on the host" : "",
                     format_bytes(report.requested_rounded), report.tag, format_bytes(had));
}

std::string banner(const RunResult& run) {
  const Config& c = run.config;
  const SystemInfo& s = run.system;
  std::string options;
  for (const OptionValues::Entry& option : c.options.entries()) options += ", " + option.words();
  const std::string host = c.host_memory == kUnlimited ? "" : ", host memory " + format_bytes(c.host_memory);
  std::string text = fmt::format("{} - {}\nmodel {}, batch {}{}, budget {}{}, cuBLAS workspace {}{}\n", run.program,
                                 run.title, c.model, c.batch, options, format_limit(c.budget), host,
                                 format_bytes(c.workspace), c.tf32 ? ", FP32 products in TF32" : "");
  if (c.plan) {
    text += "plan mode: bytes only, nothing is computed\n";
  } else if (s.backend == "host") {
    text += fmt::format("host runtime, {} threads, {}: times are this processor's, not a GPU's\n", s.threads, s.cpu);
  } else {
    text += fmt::format("device {}: {}, compute capability {}.{}, {} free of {}, driver {}, {}\n", c.device,
                        s.device_name, s.compute_major, s.compute_minor, format_bytes(s.device_free),
                        format_bytes(s.device_total), s.driver, s.runtime);
  }
  return text;
}

std::string comparison_table(const RunResult& run) {
  std::vector<std::vector<std::string>> rows = {{"variant", "under budget", "peak allocated", "predicted", "error",
                                                 "reserved", "device used", "samples/s", "[p10, p90]", "numerics"}};
  const bool on_host = std::ranges::any_of(run.variants, uses_host_memory);
  if (on_host) rows[0].insert(rows[0].begin() + 5, {"host memory", "error"});
  bool starred = false;
  for (const VariantResult& v : run.variants) {
    const bool oom = v.outcome == VariantResult::Outcome::oom;
    std::vector<std::string> row = {v.name, oom ? "OOM" : name_of(v.outcome)};
    const std::string star = oom && v.measured ? "*" : "";
    starred |= !star.empty();
    row.push_back(v.measured ? format_bytes(v.peak_allocated) + star : "-");
    row.push_back(v.outcome == VariantResult::Outcome::skipped ? "-" : format_bytes(v.predicted_peak()));
    row.push_back(error_cell(v));
    if (on_host) {
      row.push_back(uses_host_memory(v) ? format_bytes(v.measured ? v.on_host.total() : v.predicted_on_host.total())
                                        : "-");
      row.push_back(error_cell_on_host(v));
    }
    row.push_back(v.measured ? format_bytes(v.peak_reserved) : "-");
    row.push_back(v.measured ? format_bytes(v.peak_device_used) : "-");
    if (v.samples_per_second.empty()) {
      row.insert(row.end(), {"-", "-"});
    } else {
      row.push_back(fmt::format("{:.1f}", quantile(v.samples_per_second, 0.5)));
      row.push_back(
          fmt::format("[{:.1f}, {:.1f}]", quantile(v.samples_per_second, 0.1), quantile(v.samples_per_second, 0.9)));
    }
    row.push_back(numerics_cell(v));
    rows.push_back(std::move(row));
  }
  std::string text = align(rows);
  if (starred) text += "* exceeds the budget; measured again without it\n";
  for (const VariantResult& v : run.variants)
    if (!v.ranks.empty() && uses_host_memory(v))
      text += fmt::format("{}: host memory of the rank that has most; of all together {}\n", v.name,
                          format_bytes(v.on_host_of_all));
  std::size_t before = 0;
  for (const VariantResult& v : run.variants) before = std::max(before, v.device_used_before);
  if (before)
    text += fmt::format(
        "device used: up to {} of it were in use before a variant began: by the context, by libraries, by others\n",
        format_bytes(before));
  for (const VariantResult& v : run.variants) {
    if (!v.reason.empty()) text += fmt::format("{}: {}\n", v.name, v.reason);
    if (v.compared && v.agreement.kind == Agreement::Kind::differs_by_design && !v.agreement.why.empty())
      text += fmt::format("{}: differs by design: {}\n", v.name, v.agreement.why);
  }
  return text;
}

std::optional<LeastTime> least_time_of(const RunResult& run, const VariantResult& v) {
  // The peak of TF32 is in no table here, and FP32's is no bound for it.
  if (run.config.tf32 && v.dtype == DType::fp32) return std::nullopt;
  std::optional<LeastTime> longest;
  const auto add = [&](const std::optional<double>& flops, const ByCategory& at_peak) {
    const auto least = flops ? least_time(*run.card, v.dtype, *flops, at_peak) : std::nullopt;
    if (least && (!longest || least->seconds() > longest->seconds())) longest = least;
  };
  if (!run.card) return std::nullopt;
  if (v.ranks.empty()) add(v.flops, v.predicted);
  for (const RankResult& r : v.ranks) add(r.flops, r.predicted);
  return longest;
}

std::string least_time_table(const RunResult& run) {
  if (!run.card) return "";
  const Card& card = *run.card;
  std::vector<std::vector<std::string>> rows = {
      {"least time of a step", "operations", "computing", "bytes", "moving", "at least"}};
  if (!run.config.plan) rows[0].insert(rows[0].end(), {"measured", "% of bound"});
  bool ranks = false;
  for (const VariantResult& v : run.variants) {
    const auto least = least_time_of(run, v);
    rows.push_back({v.name});
    ranks |= !v.ranks.empty();
    if (!least) {
      rows.back().resize(rows[0].size(), "-");
      continue;
    }
    const auto seconds = seconds_of(v);
    rows.back().insert(rows.back().end(),
                       {format_decimal(least->flops, "FLOP"), format_seconds(least->computing_seconds),
                        format_decimal(least->moved_bytes, "B"), format_seconds(least->moving_seconds),
                        format_seconds(least->seconds())});
    if (run.config.plan) continue;
    rows.back().push_back(seconds ? format_seconds(*seconds) : "-");
    rows.back().push_back(seconds ? fmt::format("{:.0f}", 100 * least->seconds() / *seconds) : "-");
  }
  std::string text = align(rows);
  text += fmt::format("on {}: {:g} TFLOP/s in FP32, {:g} in {}, {:g} GB/s. A bound, no prediction: the larger of\n",
                      card.title, card.fp32_tflops, card.fp16_tflops, card.has_bf16 ? "FP16 and BF16" : "FP16",
                      card.gb_per_s);
  text +=
      "its matrix products alone at the peak, and what it holds, written and read once, less what the cache can hold\n";
  return text + (ranks ? "of ranks the one that needs longest; nothing is counted for what they send\n\n" : "\n");
}

std::string growth_lines(const RunResult& run) {
  std::string text;
  std::size_t looked_for = 0;
  for (const VariantResult& v : run.variants) {
    looked_for += v.growth_looked_for;
    for (const Growth& growth : v.growths)
      text += fmt::format("{}{} GROWS: {}\n", v.name, v.ranks.empty() ? "" : fmt::format(", rank {}", v.growth_rank),
                          describe(growth, run.config.budget));
  }
  if (!text.empty() || looked_for == 0) return text;
  return fmt::format("no memory grows: {} variants hold the same bytes at the same points of {} steps\n", looked_for,
                     run.config.memory_steps);
}

std::string claims_table(const RunResult& run) {
  std::string text;
  for (const ClaimResult& c : run.claims) {
    text += fmt::format("claim \"{}\"\n      {}: ", c.claim.text, c.claim.what);
    if (!c.judged()) {
      text += fmt::format("{}\n", c.verdict_text());
      continue;
    }
    text += fmt::format("{:.4g}{}, expected {}: {}\n", *c.judged(), c.claim.at_size ? " for " + c.claim.size : "",
                        describe(c.claim.range), c.verdict_text());
    if (!c.claim.at_size || !c.measured) continue;
    const bool alike = c.claim.range.has(*c.measured) == c.claim.range.has(*c.judged());
    text += fmt::format("      in this run: {:.4g}{}\n", *c.measured,
                        alike || c.claim.here.empty() ? "" : fmt::format(" ({})", c.claim.here));
  }
  return text;
}

std::string verdict_line(const RunResult& run) {
  std::string text;
  for (const std::string& failure : run.failures) text += fmt::format("failed: {}\n", failure);
  std::size_t exact = 0, measured = 0, compared = 0;
  for (const VariantResult& v : run.variants) {
    measured += v.measured;
    exact += v.measured && v.prediction_holds();
    compared += v.compared;
  }
  if (measured == 0) return text + "NOT RUN: no variant could run here, so nothing was checked\n";
  return text + fmt::format("{}: {} of {} predicted peaks exact to the byte, {} numerics checks, {} checks failed\n",
                            run.failures.empty() ? "PASS" : "FAIL", exact, measured, compared, run.failures.size());
}

std::string phase_table(const VariantResult& result) {
  std::vector<std::vector<std::string>> rows = {{"phase"}};
  for (const char* head : {"allocated", "reserved", "device used"}) rows[0].push_back(head);
  for (std::size_t c = 0; c < kCategoryCount; ++c) rows[0].push_back(name_of(static_cast<Category>(c)));
  for (const PhasePeak& phase : result.phases) {
    std::vector<std::string> row = {phase.name, format_bytes(phase.peak_allocated), format_bytes(phase.peak_reserved),
                                    format_bytes(phase.peak_device_used)};
    for (std::size_t c = 0; c < kCategoryCount; ++c) row.push_back(format_bytes(phase.at_peak.bytes[c]));
    rows.push_back(std::move(row));
  }
  return align(rows);
}

std::string result_json(const RunResult& run) {
  const Config& c = run.config;
  JsonWriter json;
  json.begin_object().member("schema_version", 3).member("chapter", run.program).member("title", run.title);
  json.key("system");
  write_system(json, run.system);
  json.key("config").begin_object().member("model", c.model).member("batch", c.batch).member("steps", c.steps);
  json.member("budget_bytes", maybe_limit(c.budget))
      .member("workspace_bytes", c.workspace)
      .member("device", c.device)
      .member("devices", c.devices);
  if (c.host_memory != kUnlimited) json.member("host_memory_bytes", c.host_memory);
  if (c.tf32) json.member("tf32", true);
  if (c.memory_steps != kMemorySteps) json.member("memory_steps", c.memory_steps);
  for (const OptionValues::Entry& option : c.options.entries()) {
    std::string name = option.name;
    std::ranges::replace(name, '-', '_');
    std::visit([&](const auto& value) { json.member(name, value); }, option.value);
  }
  json.member("quick", c.quick).member("plan", c.plan).end_object();
  json.key("variants").begin_array();
  for (const VariantResult& v : run.variants) write_variant(json, run, v);
  json.end_array().key("claims").begin_array();
  for (const ClaimResult& r : run.claims) write_claim(json, r);
  json.end_array().key("findings").begin_object();
  for (const auto& [name, figure] : run.findings) json.member(name, figure);
  json.end_object().key("tables").begin_array();
  for (const Table& table : run.tables) write_table(json, table);
  json.end_array().key("failures").begin_array();
  for (const std::string& failure : run.failures) json.value(failure);
  const bool measured = std::ranges::any_of(run.variants, &VariantResult::measured);
  json.end_array().member("passed", run.failures.empty() && measured).end_object();
  return json.text();
}

}  // namespace oomlab
