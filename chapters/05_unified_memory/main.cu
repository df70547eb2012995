// Chapter 05, unified memory: what if the memory simply were larger?
//
// The problem   The model's state, 16 bytes a parameter, is larger than the device: here 1.5 times the budget, and
//               3 times half of it.
// The idea      cudaMallocManaged gives one address to both sides, and pages move when they are touched. Or move the
//               state yourself: it rests in pinned host memory, and each layer's tensors are copied to the device just
//               before they are needed, by a second stream, while the layer before computes.
// The bytes     device memory 16 P; managed 0 of the budget, 16 P of managed memory; streamed: two slots of the largest
//               layer, 32 max(layer), and 12 P pinned; optimizer offload: 8 P + two slots of moments, and 8 P pinned.
// Run it        build/host/bin/05_unified_memory
//               build/host/bin/05_unified_memory --filter loader

#include "loader.h"
#include "places.h"

namespace {

using namespace oomlab;
using namespace oomlab::unified_memory;
using namespace oomlab::train;

using MakePlace = std::function<std::unique_ptr<Place>(Context&, const nn::MlpSpec&)>;
using Results = std::vector<VariantResult>;

std::optional<double> speed(const Results& results, const std::string& name) {
  for (const VariantResult& r : results)
    if (r.name == name && !r.samples_per_second.empty()) return median(r.samples_per_second);
  return std::nullopt;
}
std::optional<double> peak(const Results& results, const std::string& name) {
  for (const VariantResult& r : results)
    if (r.name == name && r.measured) return double(r.peak_allocated);
  return std::nullopt;
}
std::optional<double> ratio(std::optional<double> a, std::optional<double> b) {
  return a && b && *b > 0 ? std::optional(*a / *b) : std::nullopt;
}

// Times of the host runtime tell nothing here: its pages do not travel, only the books do.
std::optional<double> device_times(std::optional<double> ratio) {
  return std::string(backend_name()) == "host" ? std::nullopt : ratio;
}

Chapter unified_memory(const Config& config) {
  const nn::MlpSpec spec = nn::parse_model(config.model);
  if (spec.layers() < 2)
    throw UsageError(fmt::format("model '{}' has one layer; this chapter needs two or more", spec.name));
  const auto dataset = std::make_shared<data::Dataset>(load_images(config, spec));
  const auto traffic = std::make_shared<std::map<std::string, Traffic>>();
  const std::size_t inputs = spec.inputs(), half = config.budget == kUnlimited ? kUnlimited : config.budget / 2;

  Chapter chapter;
  chapter.title = "more than the device has";
  const auto add = [&](const std::string& name, const nn::MlpSpec& model, ByCategory state, Agreement agreement,
                       std::optional<Loading> loading, MakePlace place) {
    chapter.variants.push_back({
        .name = name,
        .batch = config.batch,
        .predicted =
            [=](std::size_t batch) {
              ByCategory bytes = LayerTraining::predicted(model, batch);
              const ByCategory source = loading ? HostSource::predicted(batch, inputs, *loading)
                                                : DeviceSource::predicted(*dataset, batch, inputs);
              for (std::size_t c = 0; c < kCategoryCount; ++c)
                bytes.bytes[c] = checked_sum(bytes.bytes[c], checked_sum(source.bytes[c], state.bytes[c]));
              return bytes;
            },
        .agreement = std::move(agreement),
        .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
          const auto source = [&](Context& c) -> std::unique_ptr<BatchSource> {
            if (loading) return std::make_unique<HostSource>(c, *dataset, batch, inputs, *loading);
            return std::make_unique<DeviceSource>(c, *dataset, batch, inputs);
          };
          return std::make_unique<LayerTraining>(
              context, model, batch, source, [&](Context& c) { return place(c, model); }, (*traffic)[name]);
        },
    });
  };
  const auto managed = [&](const std::string& name, Paging paging, std::size_t capacity) {
    add(name, spec, {}, {}, std::nullopt, [=](Context& c, const nn::MlpSpec& model) {
      return std::make_unique<Managed>(c, model, paging, Managed::room(config, c, capacity));
    });
  };
  const auto on_device = [](Context& c, const nn::MlpSpec& model) { return std::make_unique<OnDevice>(c, model); };

  add("device memory", spec, OnDevice::predicted(spec), {}, std::nullopt, on_device);
  managed("managed, on demand", Paging::on_demand, config.budget);
  managed("managed, prefetch", Paging::prefetch, config.budget);
  managed("managed, advice", Paging::advice, config.budget);
  managed("managed, read-mostly", Paging::read_mostly, config.budget);
  managed("managed, on the host", Paging::host_preferred, config.budget);
  managed("half, on demand", Paging::on_demand, half);
  managed("half, prefetch", Paging::prefetch, half);
  managed("half, advice", Paging::advice, half);
  for (const bool weights_stay : {true, false})
    add(weights_stay ? "optimizer offload" : "streamed", spec, Streamed::predicted(spec, weights_stay), {},
        std::nullopt,
        [=](Context& c, const nn::MlpSpec& model) { return std::make_unique<Streamed>(c, model, weights_stay); });
  nn::MlpSpec small = spec;  // the question about the input needs no large model
  small.widths = {spec.inputs(), spec.widths[1], spec.classes()};
  for (const auto& [name, loading] :
       {std::pair("loader, pageable", Loading::pageable), std::pair("loader, pinned", Loading::pinned),
        std::pair("loader, pinned ahead", Loading::pinned_ahead)})
    add(name, small, OnDevice::predicted(small), differs_by_design("a small model: the question is about its input"),
        loading, on_device);

  const auto moved = [traffic](const std::string& name) -> std::optional<ManagedTraffic> {
    const auto found = traffic->find(name);
    return found == traffic->end() ? std::nullopt : found->second.step;
  };
  const auto faults = [moved](const std::string& name) {
    const auto step = moved(name);
    return step ? std::optional(double(step->faults)) : std::nullopt;
  };
  const auto bytes = [moved](const std::string& name) {
    const auto step = moved(name);
    return step ? std::optional(double(step->bytes_to_device + step->bytes_to_host)) : std::nullopt;
  };
  const double used_pages = 5 * double(state_bytes(spec)) / kManagedPage;  // values twice, the rest once
  chapter.claims = {
      {"cudaMallocManaged makes OOM go away, and that is all", "samples/s, managed on demand / device memory", 0.9, 1e9,
       [](const Results& r) { return device_times(ratio(speed(r, "managed, on demand"), speed(r, "device memory"))); }},
      {"at 1.5 times the device, a third of the touches fault", "faults / pages used, on demand", 0.25, 0.4,
       [=](const Results&) { return ratio(faults("managed, on demand"), used_pages); }},
      {"prefetching avoids the faults", "faults, prefetch / on demand", 0, 0.1,
       [=](const Results&) { return ratio(faults("managed, prefetch"), faults("managed, on demand")); }},
      {"prefetching avoids the traffic", "bytes moved, prefetch / on demand", 0, 0.5,
       [=](const Results&) { return ratio(bytes("managed, prefetch"), bytes("managed, on demand")); }},
      {"prefetching gives the speed back", "samples/s, prefetch / on demand", 1.1, 1e9,
       [](const Results& r) {
         return device_times(ratio(speed(r, "managed, prefetch"), speed(r, "managed, on demand")));
       }},
      {"offloading the optimizer frees 8 bytes a parameter", "bytes a parameter less at the peak", 6, 8,
       [spec](const Results& r) -> std::optional<double> {
         const auto all = peak(r, "device memory"), offload = peak(r, "optimizer offload");
         if (!all || !offload) return std::nullopt;
         return (*all - *offload) / double(spec.parameters());
       }},
      {"pin_memory takes device memory", "peak pinned / peak pageable", 1.0001, 1e9,
       [](const Results& r) { return ratio(peak(r, "loader, pinned"), peak(r, "loader, pageable")); }},
  };

  chapter.after = [=](const Results& results, Report& report) {
    const std::size_t state = checked_product(state_bytes(spec), 4), used = checked_product(state_bytes(spec), 5);
    report.line(fmt::format("state {}: {:.2f} x the budget, {:.2f} x half of it; a step uses {} of it",
                            format_bytes(state), double(state) / double(config.budget), double(state) / double(half),
                            format_bytes(used)));
    report.line(
        "one step              outside budget  faults  found there   to device     to host  prefetched    in place");
    std::optional<std::uint64_t> loaded;
    for (const VariantResult& r : results) {
      if (!r.measured || config.plan) continue;
      const Traffic& t = (*traffic)[r.name];
      const ManagedTraffic moved = t.step.value_or(ManagedTraffic{});
      const bool is_managed = t.step && (r.name.rfind("managed", 0) == 0 || r.name.rfind("half", 0) == 0);
      const double found = 1 - double(moved.faults) / used_pages;
      const auto cell = [&](const std::string& text) { return is_managed ? text : std::string("-"); };
      report.line(fmt::format("{:<20} {:>15} {:>7} {:>12} {:>11} {:>11} {:>11} {:>11}", r.name,
                              format_bytes(t.outside_bytes), cell(fmt::format("{}", moved.faults)),
                              cell(fmt::format("{:.0f} %", 100 * found)), cell(format_bytes(moved.bytes_to_device)),
                              cell(format_bytes(moved.bytes_to_host)), cell(format_bytes(moved.bytes_prefetched)),
                              cell(format_bytes(t.bytes_in_place))));
      std::string key = r.name;
      std::replace_if(
          key.begin(), key.end(), [](char c) { return c == ' ' || c == ',' || c == '-'; }, '_');
      report.figure(key + "_outside_bytes", double(t.outside_bytes));
      if (is_managed) {
        report.figure(key + "_faults", double(moved.faults));
        report.figure(key + "_bytes_to_device", double(moved.bytes_to_device));
        report.figure(key + "_bytes_to_host", double(moved.bytes_to_host));
      }
      if (r.name.rfind("loader", 0) != 0) continue;
      if (!loaded) loaded = r.fingerprint;
      report.check(*loaded == r.fingerprint, fmt::format("{}: the loaders do not give the same bits", r.name));
    }
    report.line("");
  };
  return chapter;
}

}  // namespace

int main(int argc, char** argv) {
  const Defaults full{
      .model = "mlp:512-768x17-10", .batch = 64, .steps = 6, .budget = std::size_t(100) << 20, .oversubscribe = true};
  const Defaults quick{
      .model = "mlp:64-256x20-10", .batch = 16, .steps = 2, .budget = std::size_t(20) << 20, .oversubscribe = true};
  return run_chapter(argc, argv, full, quick, unified_memory);
}
