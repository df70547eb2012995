#include "harness/result.h"

#include <fmt/format.h>

#include "harness/timing.h"
#include "plan/bytes.h"
#include "plan/json_writer.h"

namespace oomlab {
namespace {

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

void write_least_time(JsonWriter& json, const RunResult& run, const VariantResult& v) {
  const auto least = least_time_of(run, v);
  if (!least) return;
  json.key("least_time").begin_object().member("card", run.card->name).member("seconds", least->seconds());
  json.member("computing_seconds", least->computing_seconds).member("moving_seconds", least->moving_seconds);
  json.member("moved_bytes", least->moved_bytes);
  if (const auto seconds = seconds_of(v)) json.member("share_of_bound", least->seconds() / *seconds);
  json.end_object();
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
