// Chapter 05, unified memory: what if the memory simply were larger?
//
// The problem   The model's state, 16 bytes per parameter, is larger than the device: here 1.5 times the budget, and
//               3 times half of it.
// The idea      cudaMallocManaged gives one address to both sides, and pages move when they are touched. Or move the
//               state yourself: it rests in pinned host memory, and each layer's tensors are copied to the device just
//               before they are needed, by a second stream, while the layer before computes.
// The bytes     device memory 16 P; managed 0 of the budget, 16 P of managed memory; streamed: two slots of the largest
//               layer, 32 max(layer), and 12 P pinned; moments streamed: 8 P + two slots of moments, and 8 P pinned.
// Run it        build/host/bin/05_unified_memory
//               build/host/bin/05_unified_memory --filter loader

#include "claims.h"

namespace oomlab::unified_memory {
namespace {

using MakePlace = std::function<std::unique_ptr<Place>(Context&, const nn::MlpSpec&)>;

Chapter unified_memory(const Config& config) {
  const nn::MlpSpec spec = nn::parse_model(config.model);
  if (spec.layers() < 2)
    throw UsageError(fmt::format("model '{}' has one layer; this chapter needs two or more", spec.name));
  const auto dataset = std::make_shared<data::Dataset>(load_images(config, spec));
  const auto traffic = std::make_shared<TrafficOf>();
  const std::size_t inputs = spec.inputs();

  Chapter chapter;
  chapter.title = "more than the device has";
  const auto add = [&](const std::string& name, const nn::MlpSpec& model, ByCategory state, Agreement agreement,
                       std::optional<Loading> loading, HostBytes on_host, MakePlace place) {
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
        .predicted_on_host =
            [=](std::size_t batch) {
              return loading ? HostSource::predicted_on_host(batch, inputs, *loading) : on_host;
            },
    });
  };
  const auto managed = [&](const std::string& name, Paging paging, std::size_t capacity) {
    add(name, spec, {}, {}, std::nullopt, Managed::predicted_on_host(spec), [=](Context& c, const nn::MlpSpec& model) {
      return std::make_unique<Managed>(c, model, paging, Managed::room(config, c, capacity));
    });
  };
  const auto on_device = [](Context& c, const nn::MlpSpec& model) { return std::make_unique<OnDevice>(c, model); };

  add("device memory", spec, OnDevice::predicted(spec), {}, std::nullopt, {}, on_device);
  managed("managed, on demand", Paging::on_demand, config.budget);
  managed("managed, prefetch", Paging::prefetch, config.budget);
  managed("managed, advice", Paging::advice, config.budget);
  managed("managed, read-mostly", Paging::read_mostly, config.budget);
  managed("managed, on the host", Paging::host_preferred, config.budget);
  managed("half, on demand", Paging::on_demand, half_of(config.budget));
  managed("half, prefetch", Paging::prefetch, half_of(config.budget));
  managed("half, advice", Paging::advice, half_of(config.budget));
  for (const bool weights_stay : {true, false})
    add(weights_stay ? "moments streamed" : "streamed", spec, Streamed::predicted(spec, weights_stay), {}, std::nullopt,
        Streamed::predicted_on_host(spec, weights_stay),
        [=](Context& c, const nn::MlpSpec& model) { return std::make_unique<Streamed>(c, model, weights_stay); });
  nn::MlpSpec small = spec;  // the question about the input needs no large model
  small.widths = {spec.inputs(), spec.widths[1], spec.classes()};
  for (const auto& [name, loading] :
       {std::pair("loader, pageable", Loading::pageable), std::pair("loader, pinned", Loading::pinned),
        std::pair("loader, pinned ahead", Loading::pinned_ahead), std::pair("loader, 8 queued", Loading::queued)})
    add(name, small, OnDevice::predicted(small), differs_by_design("a small model: the question is about its input"),
        loading, {}, on_device);

  chapter.claims = claims_of(spec, traffic, [config] {
    return config.budget != kUnlimited && Managed::may_oversubscribe(config, config.budget);
  });
  chapter.after = [=](const Results& results, Report& report) { tell_traffic(spec, *traffic, results, report); };
  return chapter;
}

}  // namespace
}  // namespace oomlab::unified_memory

int main(int argc, char** argv) {
  using namespace oomlab;
  const Defaults full{.model = "mlp:512-768x17-10",
                      .batch = 64,
                      .steps = 5,
                      .budget = std::size_t(100) << 20,
                      .options = {train::kData, unified_memory::kOversubscribe}};
  const Defaults quick{.model = "mlp:64-256x20-10", .batch = 16, .steps = 2, .budget = std::size_t(13) << 20};
  return run_chapter(argc, argv, full, quick, unified_memory::unified_memory);
}
