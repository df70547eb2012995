#pragma once
// Folk advice about managed and pinned memory, put to the test, and what one step moved over the bus.

#include <algorithm>
#include <functional>
#include <map>

#include "harness/finding_key.h"
#include "loader.h"
#include "places.h"

namespace oomlab::unified_memory {

/// By the variant's name: what its last step moved.
using TrafficOf = std::map<std::string, Traffic>;

inline std::size_t half_of(std::size_t budget) { return budget == kUnlimited ? kUnlimited : budget / 2; }

/// Pages of the state that a step visits: values twice, gradients and both moments once.
inline double pages_used(const nn::MlpSpec& spec) { return 5 * double(state_bytes(spec)) / kManagedPage; }

/// Bytes per parameter that leave the device when the optimizer's two moments do: 8, less two slots for the largest
/// layer's.
inline double streamed_bytes_per_parameter(const nn::MlpSpec& spec) {
  const std::size_t all = OnDevice::predicted(spec).total(), rest = Streamed::predicted(spec, true).total();
  return (double(all) - double(rest)) / double(spec.parameters());
}

/// Bytes on the device that loading in one way takes and loading in another does not.
inline double device_bytes_more(std::size_t batch, std::size_t width, Loading a, Loading b) {
  return double(HostSource::predicted(batch, width, a).total()) -
         double(HostSource::predicted(batch, width, b).total());
}

// A batch of images as people train on: 256 of 3 x 224 x 224 floats.
inline constexpr std::size_t kImages = 256, kImageFloats = 3 * 224 * 224;
inline constexpr const char* kImageBatch = "256 images of 3 x 224 x 224";

/// `oversubscribed()`, asked after the runs: whether managed memory had less of the device than it needs. Otherwise nothing
/// is said of it: its pages come once and stay.
inline std::vector<Claim> claims_of(const nn::MlpSpec& spec, const std::shared_ptr<const TrafficOf>& traffic,
                                    const std::function<bool()>& oversubscribed) {
  const auto speeds = [oversubscribed](const char* name, const char* beside) {
    return [=](const Results& r) -> std::optional<double> {
      return oversubscribed() ? r.ratio(name, beside, figures::speed) : std::nullopt;
    };
  };
  const auto step = [=](const std::string& name) -> std::optional<ManagedTraffic> {
    const auto found = traffic->find(name);
    return planning() || !oversubscribed() || found == traffic->end() ? std::nullopt : found->second.step;
  };
  const auto faults = [step](const std::string& name) -> std::optional<double> {
    const auto moved = step(name);
    return moved ? std::optional(double(moved->faults)) : std::nullopt;
  };
  const auto bytes = [step](const std::string& name) -> std::optional<double> {
    const auto moved = step(name);
    return moved ? std::optional(double(moved->bytes_to_device + moved->bytes_to_host)) : std::nullopt;
  };
  const auto more_at_the_peak = [](const char* a, const char* b) {
    return [=](const Results& r) -> std::optional<double> {
      const auto more = r.value(a, figures::peak), less = r.value(b, figures::peak);
      return more && less ? std::optional(*more - *less) : std::nullopt;
    };
  };
  const nn::MlpSpec large = nn::parse_model("mlp:4096-16384x100-10");
  const std::string pager = std::string(backend_name()) == "host" ? ", in the host runtime's pager" : "";
  return {
      {.text = "cudaMallocManaged makes OOM go away, and that is all",
       .about = About::time,
       .what = "samples/s, managed on demand / device memory",
       .range = at_least(0.9),
       .measure = speeds("managed, on demand", "device memory")},
      {.text = "prefetching gives the speed back",
       .about = About::time,
       .what = "samples/s, prefetch / on demand",
       .range = at_least(1.1),
       .measure = speeds("managed, prefetch", "managed, on demand")},
      // Faults and migrations are those of the host runtime's pager. On a GPU the driver decides.
      {.text = "at 1.5 times the device, a third of the touches fault",
       .about = About::numbers,
       .what = "faults / pages used, on demand" + pager + (pager.empty() ? "" : " (the oldest page leaves)"),
       .range = between(0.25, 0.4),
       .measure = [=](const Results&) { return ratio(faults("managed, on demand"), pages_used(spec)); }},
      {.text = "prefetching avoids the faults",
       .about = About::numbers,
       .what = "faults, prefetch / on demand" + pager,
       .range = at_most(0.1),
       .measure = [=](const Results&) { return ratio(faults("managed, prefetch"), faults("managed, on demand")); }},
      {.text = "prefetching avoids the traffic",
       .about = About::numbers,
       .what = "bytes moved, prefetch / on demand" + pager,
       .range = at_most(0.5),
       .measure = [=](const Results&) { return ratio(bytes("managed, prefetch"), bytes("managed, on demand")); }},
      {.text = "moments in host memory free 8 bytes per parameter",
       .what = "bytes per parameter less at the peak",
       .range = between(7.5, 8),
       .size = "100 layers of 16,384 x 16,384",
       .at_size = [large] { return streamed_bytes_per_parameter(large); },
       .measure = [spec](const Results& r) -> std::optional<double> {
         const auto all = r.value("device memory", figures::peak), rest = r.value("moments streamed", figures::peak);
         return all && rest ? std::optional((*all - *rest) / double(spec.parameters())) : std::nullopt;
       },
       .here = "two slots for a layer's moments are a larger share of a small model"},
      {.text = "pin_memory takes device memory",  // article 28
       .what = "bytes more on the device, pinned than pageable",
       .range = at_least(1),
       .size = kImageBatch,
       .at_size = [] { return device_bytes_more(kImages, kImageFloats, Loading::pinned, Loading::pageable); },
       .measure = more_at_the_peak("loader, pinned", "loader, pageable")},
      {.text = "fewer loader workers, or a smaller prefetch_factor, help against CUDA out of memory",  // article 28
       .what = "bytes more on the device, 4 workers x 2 batches queued than 1 batch ahead",
       .range = at_least(1),
       .size = kImageBatch,
       .at_size = [] { return device_bytes_more(kImages, kImageFloats, Loading::queued, Loading::pinned_ahead); },
       .measure = more_at_the_peak("loader, 8 queued", "loader, pinned ahead")},
  };
}

inline bool is_loader(const VariantResult& r) { return r.name.starts_with("loader"); }

/// One row a variant: what one step moved, and where. The chapter's checks on the loaders.
inline void tell_traffic(const nn::MlpSpec& spec, const TrafficOf& traffic, const Results& results, Report& report) {
  const Config& config = report.config();
  const std::size_t state = checked_product(state_bytes(spec), 4), used = checked_product(state_bytes(spec), 5);
  if (config.budget == kUnlimited)
    report.line(fmt::format("state {}; a step uses {} of it", format_bytes(state), format_bytes(used)));
  else
    report.line(fmt::format("state {}: {:.2f} x the budget, {:.2f} x half of it; a step uses {} of it",
                            format_bytes(state), double(state) / double(config.budget),
                            double(state) / double(half_of(config.budget)), format_bytes(used)));
  if (!config.plan && config.budget != kUnlimited && !Managed::may_oversubscribe(config, half_of(config.budget)))
    report.line("managed memory had all of the device in some rows, not what the budget leaves (see --oversubscribe)");
  report.line(managed_traffic_source());
  report.line(
      "one step              outside budget  faults  per page used   to device     to host  prefetched    in place");
  std::optional<std::uint64_t> loaded;
  for (const VariantResult& r : results) {
    const auto found = traffic.find(r.name);
    if (!r.measured || config.plan || found == traffic.end()) continue;
    const Traffic& t = found->second;
    const ManagedTraffic moved = t.step.value_or(ManagedTraffic{});
    const bool is_managed = t.step && (r.name.starts_with("managed") || r.name.starts_with("half"));
    const auto cell = [&](const std::string& text) { return is_managed ? text : std::string("-"); };
    report.line(fmt::format("{:<20} {:>15} {:>7} {:>14} {:>11} {:>11} {:>11} {:>11}", r.name,
                            format_bytes(t.outside_bytes), cell(fmt::format("{}", moved.faults)),
                            cell(fmt::format("{:.2f}", double(moved.faults) / pages_used(spec))),
                            cell(format_bytes(moved.bytes_to_device)), cell(format_bytes(moved.bytes_to_host)),
                            cell(format_bytes(moved.bytes_prefetched)), cell(format_bytes(t.bytes_in_place))));
    const std::string key = finding_key(r.name);
    report.figure(key + "_outside_bytes", double(t.outside_bytes));
    if (is_managed) {
      report.figure(key + "_faults", double(moved.faults));
      report.figure(key + "_bytes_to_device", double(moved.bytes_to_device));
      report.figure(key + "_bytes_to_host", double(moved.bytes_to_host));
    }
    if (!is_loader(r)) continue;
    if (!loaded) loaded = r.fingerprint;
    report.check(*loaded == r.fingerprint, fmt::format("{}: the loaders do not give the same bits", r.name));
  }
  const auto of_images = [](Loading loading) {
    return HostSource::predicted_on_host(kImages, kImageFloats, loading).total();
  };
  const std::size_t images = of_images(Loading::queued);
  report.line(fmt::format("batches in host memory: workers x prefetch_factor x a batch, {} x {} x {} = {} for {}",
                          HostSource::kWorkers, HostSource::kPrefetchFactor, format_bytes(of_images(Loading::pinned)),
                          format_bytes(images), kImageBatch));
  report.figure("host_bytes_of_8_image_batches", double(images));
  report.line("");
}

}  // namespace oomlab::unified_memory
