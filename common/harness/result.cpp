#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "harness/chinese.h"
#include "harness/result.h"
#include "harness/timing.h"
#include "plan/bytes.h"
#include "plan/language.h"

namespace oomlab {

// In the order of the enumerators.
const char* name_of(VariantResult::Outcome outcome) {
  constexpr const char* kNames[] = {"ok", "oom", "skipped"};
  return kNames[static_cast<int>(outcome)];
}
const char* name_of(Agreement::Kind kind) {
  constexpr const char* kNames[] = {"bit-equal", "within tolerance", "differs by design"};
  return kNames[static_cast<int>(kind)];
}

namespace {

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

// What heads of columns and words in cells mean: tables are the same in both languages, what stands below them is not.
struct Meaning {
  const char *english, *chinese;
};
constexpr Meaning kComparison[] = {
    {"variant", "方案"},
    {"under budget", "预算之下（ok 放得下，OOM 显存不足，skipped 跳过）"},
    {"peak allocated", "已分配的峰值"},
    {"predicted", "预测"},
    {"error", "误差（字节）"},
    {"host memory", "主机内存"},
    {"reserved", "已保留"},
    {"device used", "设备已用"},
    {"samples/s", "每秒样本数"},
    {"[p10, p90]", "第 10 和第 90 百分位"},
    {"numerics", "数值与 baseline（基线）相比：bit-equal 逐位相同，within 在容差之内，differs by design 有意不同"}};
constexpr Meaning kLeastTime[] = {{"least time of a step", "一步的最短时间"},
                                  {"operations", "运算量"},
                                  {"computing", "计算"},
                                  {"bytes", "字节"},
                                  {"moving", "搬运"},
                                  {"at least", "至少"},
                                  {"measured", "实测"},
                                  {"% of bound", "占下界的百分比"}};
constexpr Meaning kPhases[] = {
    {"phase", "阶段"}, {"allocated", "已分配"}, {"reserved", "已保留"}, {"device used", "设备已用"}};

// Lines below a table in Chinese: what its heads mean, four of them on each. Nothing in English.
std::string legend(const std::vector<std::string>& heads, std::span<const Meaning> meanings, const Say& say) {
  if (!say.chinese) return "";
  constexpr std::size_t kOnALine = 4;
  std::string text;
  std::size_t count = 0;
  for (const Meaning& meaning : meanings) {
    if (std::ranges::find(heads, meaning.english) == heads.end()) continue;
    text += count == 0 ? "各列：" : count % kOnALine == 0 ? "；\n      " : "；";
    text += fmt::format("{} {}", meaning.english, meaning.chinese);
    ++count;
  }
  return text + "\n";
}

}  // namespace

// Seconds of a step, as they were measured.
std::optional<double> seconds_of(const VariantResult& v) {
  return v.samples_per_second.empty() ? std::nullopt
                                      : std::optional(static_cast<double>(v.batch) / median(v.samples_per_second));
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

std::string format_limit(std::size_t bytes) { return bytes == kUnlimited ? "none" : format_bytes(bytes); }

std::string oom_line(const OutOfMemoryReport& report, bool chinese) {
  const Say say{chinese};
  if (report.on_host && !report.by_limit)
    return say("OOM on the host: asked for {} ({}), which the system does not have",
               "主机内存不足：要申请 {}（{}），系统没有", format_bytes(report.requested_rounded), report.tag);
  // Under a budget, what it has left; on the device, what is free there or cached.
  const std::size_t had = report.by_limit
                              ? report.limit - std::min(report.limit, report.limit_used)
                              : report.device_free + (report.reserved - std::min(report.reserved, report.live));
  if (report.cause() == OutOfMemoryReport::Cause::fragmented && report.largest_free_block) {
    // Under a budget, what is free inside of what the allocator holds was not counted above.
    const std::size_t inside = report.by_limit ? report.reserved - std::min(report.reserved, report.live) : 0;
    return say("OOM: asked for {} ({}), had {} in pieces, the largest {}",
               "显存不足：要申请 {}（{}），剩下的 {} 是零散的，最大一块 {}", format_bytes(report.requested_rounded),
               report.tag, format_bytes(had + inside), format_bytes(std::max(had, report.largest_free_block)));
  }
  if (report.on_host)
    return say("OOM on the host: asked for {} ({}), had {}", "主机内存不足：要申请 {}（{}），只剩 {}",
               format_bytes(report.requested_rounded), report.tag, format_bytes(had));
  return say("OOM: asked for {} ({}), had {}", "显存不足：要申请 {}（{}），只剩 {}",
             format_bytes(report.requested_rounded), report.tag, format_bytes(had));
}

namespace {

// Why a variant has no peak under the budget. Result files have it in English.
std::string reason_of(const VariantResult& v, bool chinese) {
  if (!chinese) return v.reason;
  if (!v.oom) return in_chinese(v.reason);
  return oom_line(*v.oom, chinese) + v.reason.substr(std::min(v.reason.size(), oom_line(*v.oom).size()));
}

}  // namespace

std::string banner(const RunResult& run) {
  const Config& c = run.config;
  const SystemInfo& s = run.system;
  std::string options;
  for (const OptionValues::Entry& option : c.options.entries()) options += ", " + option.words();
  const Say say{c.chinese};
  const std::string host = c.host_memory == kUnlimited ? "" : ", host memory " + format_bytes(c.host_memory);
  std::string text = fmt::format("{} - {}\nmodel {}, batch {}{}, budget {}{}, cuBLAS workspace {}{}\n", run.program,
                                 run.title, c.model, c.batch, options, format_limit(c.budget), host,
                                 format_bytes(c.workspace), c.tf32 ? ", FP32 products in TF32" : "");
  if (c.plan) {
    text += say("plan mode: bytes only, nothing is computed\n", "规划模式：只统计字节，什么也不计算\n");
  } else if (s.backend == "host") {
    text += say("host runtime, {} threads, {}: times are this processor's, not a GPU's\n",
                "主机运行时，{} 个线程，{}：时间是这个 CPU 的，不是 GPU 的\n", s.threads, s.cpu);
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
  const Say say{run.config.chinese};
  std::string text = align(rows) + legend(rows[0], kComparison, say);
  if (starred) text += say("* exceeds the budget; measured again without it\n", "* 超出预算；不设预算又测了一次\n");
  for (const VariantResult& v : run.variants)
    if (!v.ranks.empty() && uses_host_memory(v))
      text += say("{}: host memory of the rank that has most; of all together {}\n",
                  "{}：主机内存是占得最多的 rank 的；所有 rank 合计 {}\n", v.name, format_bytes(v.on_host_of_all));
  std::size_t before = 0;
  for (const VariantResult& v : run.variants) before = std::max(before, v.device_used_before);
  if (before)
    text +=
        say("device used: up to {} of it were in use before a variant began: by the context, by libraries, by others\n",
            "device used：其中最多 {} 在方案开始之前就占着（上下文、库、别的进程）\n", format_bytes(before));
  for (const VariantResult& v : run.variants) {
    if (!v.reason.empty()) text += say("{}: {}\n", "{}：{}\n", v.name, reason_of(v, say.chinese));
    if (v.compared && v.agreement.kind == Agreement::Kind::differs_by_design && !v.agreement.why.empty())
      text += say("{}: differs by design: {}\n", "{}：有意不同：{}\n", v.name,
                  say.chinese ? in_chinese(v.agreement.why) : v.agreement.why);
  }
  return text;
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
  const Say say{run.config.chinese};
  const std::string halves = card.has_bf16 ? say("FP16 and BF16", "FP16/BF16") : "FP16";
  std::string text = align(rows) + legend(rows[0], kLeastTime, say);
  text += say(
      "on {}: {:g} TFLOP/s in FP32, {:g} in {}, {:g} GB/s. A bound, no prediction: the larger of\n"
      "its matrix products alone at the peak, and what it holds, written and read once, less what the cache can hold\n",
      "在 {0} 上：FP32 {1:g} TFLOP/s，{3} {2:g}，{4:g} GB/s。这是下界，不是预测，取两者中大的：\n"
      "只做矩阵乘法、按峰值算力要的时间；这一步占着的字节写一次、读一次（减去缓存装得下的）要的时间\n",
      card.title, card.fp32_tflops, card.fp16_tflops, halves, card.gb_per_s);
  if (ranks)
    text += say("of ranks the one that needs longest; nothing is counted for what they send\n",
                "有多个 rank 时，是用时最长的那个；传输的时间没有计入\n");
  return text + "\n";
}

std::string growth_lines(const RunResult& run) {
  const Say say{run.config.chinese};
  std::string text;
  std::size_t looked_for = 0;
  for (const VariantResult& v : run.variants) {
    looked_for += v.growth_looked_for;
    for (const Growth& growth : v.growths)
      text += say("{}{} GROWS: {}\n", "{}{} 一直在增长：{}\n", v.name,
                  v.ranks.empty() ? "" : say(", rank {}", "，rank {}", v.growth_rank),
                  describe(growth, run.config.budget, say.chinese));
  }
  if (!text.empty() || looked_for == 0) return text;
  return say("no memory grows: {} variants hold the same bytes at the same points of {} steps\n",
             "显存没有增长：{} 种方案在 {} 步的同样位置占着同样的字节\n", looked_for, run.config.memory_steps);
}

std::string claims_table(const RunResult& run) {
  const Say say{run.config.chinese};
  const auto in_words = [&](const std::string& english) { return say.chinese ? in_chinese(english) : english; };
  std::string text;
  for (const ClaimResult& c : run.claims) {
    const ClaimWords words =
        say.chinese ? claim_in_chinese(c.claim.text, c.claim.what) : ClaimWords{c.claim.text, c.claim.what};
    text += say("claim \"{}\"\n      {}: ", "说法“{}”\n      {}：", words.text, words.what);
    const std::string verdict = in_words(c.verdict_text());
    if (!c.judged()) {
      text += verdict + "\n";
      continue;
    }
    const std::string size = c.claim.at_size ? say(" for {}", "（{}）", in_words(c.claim.size)) : "";
    text += say("{:.4g}{}, expected {}: {}\n", "{:.4g}{}；成立条件：{}；判定：{}\n", *c.judged(), size,
                describe(c.claim.range, say.chinese), verdict);
    if (!c.claim.at_size || !c.measured) continue;
    const bool alike = c.claim.range.has(*c.measured) == c.claim.range.has(*c.judged());
    text += say("      in this run: {:.4g}{}\n", "      本次运行：{:.4g}{}\n", *c.measured,
                alike || c.claim.here.empty() ? "" : say(" ({})", "（{}）", in_words(c.claim.here)));
  }
  return text;
}

std::string verdict_line(const RunResult& run) {
  const Say say{run.config.chinese};
  std::string text;
  for (const std::string& failure : run.failures) text += say("failed: {}\n", "没有通过：{}\n", failure);
  std::size_t exact = 0, measured = 0, compared = 0;
  for (const VariantResult& v : run.variants) {
    measured += v.measured;
    exact += v.measured && v.prediction_holds();
    compared += v.compared;
  }
  if (measured == 0)
    return text + say("NOT RUN: no variant could run here, so nothing was checked\n",
                      "NOT RUN：没有一种方案能在这里运行，所以什么也没有检查\n");
  return text + say("{}: {} of {} predicted peaks exact to the byte, {} numerics checks, {} checks failed\n",
                    "{0}：预测的峰值 {2} 个中有 {1} 个精确到字节，数值检查 {3} 项，没有通过的检查 {4} 项\n",
                    run.failures.empty() ? "PASS" : "FAIL", exact, measured, compared, run.failures.size());
}

std::string phase_table(const VariantResult& result, bool chinese) {
  std::vector<std::vector<std::string>> rows = {{"phase"}};
  for (const char* head : {"allocated", "reserved", "device used"}) rows[0].push_back(head);
  for (std::size_t c = 0; c < kCategoryCount; ++c) rows[0].push_back(name_of(static_cast<Category>(c)));
  for (const PhasePeak& phase : result.phases) {
    std::vector<std::string> row = {phase.name, format_bytes(phase.peak_allocated), format_bytes(phase.peak_reserved),
                                    format_bytes(phase.peak_device_used)};
    for (std::size_t c = 0; c < kCategoryCount; ++c) row.push_back(format_bytes(phase.at_peak.bytes[c]));
    rows.push_back(std::move(row));
  }
  std::string text = align(rows);
  if (chinese) {
    text += legend(rows[0], kPhases, Say{chinese});
    std::vector<std::string> categories;
    for (std::size_t c = 0; c < kCategoryCount; ++c)
      categories.push_back(
          fmt::format("{} {}", name_of(static_cast<Category>(c)), words_of(static_cast<Category>(c), chinese)));
    text += fmt::format("各类：{}\n", fmt::join(categories, "；"));
  }
  return text;
}

}  // namespace oomlab
