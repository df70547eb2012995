// Chapter 06, the caching allocator: memory that is free and still not there.
//
// The problem   cudaMalloc for every tensor is slow, because it asks the driver, and cudaFree waits for the device. So
//               frameworks keep what is freed. Then memory is reserved that nobody uses, and a request fails although
//               enough is free, in pieces.
// The idea      Best fit with split and coalesce (best_fit.h, to read first). Then the version that wins
//               (caching_allocator.h): finds a block in constant time, shares memory between streams by events, and
//               puts pieces together by moving pages under addresses. Or plan the whole step in advance (planned.h).
// The bytes     allocated is the same for all of them. reserved = live + what is free in pages that a live block is in.
// Run it        build/host/bin/06_caching_allocator            build/host/bin/06_caching_allocator --filter varying

#include "demos.h"
#include "steps.h"

namespace {

using namespace oomlab;
using namespace oomlab::caching_allocator;
using namespace oomlab::train;

using Results = std::vector<VariantResult>;
constexpr std::size_t kPiecesLimit = std::size_t(96) << 20;

/// One resource under another, owned together.
template <class Top, class Bottom>
class Stack final : public MemoryResource {
 public:
  Stack(std::unique_ptr<Bottom> bottom, std::unique_ptr<Top> top) : bottom_(std::move(bottom)), top_(std::move(top)) {}
  void* allocate(std::size_t bytes, cudaStream_t stream) override { return top_->allocate(bytes, stream); }
  void deallocate(void* address, std::size_t bytes, cudaStream_t stream) noexcept override {
    top_->deallocate(address, bytes, stream);
  }
  std::size_t reserved_bytes() const override { return top_->reserved_bytes(); }
  std::size_t largest_free_block() const override { return top_->largest_free_block(); }
  bool releases_cache() const override { return top_->releases_cache(); }
  Top& top() { return *top_; }

 private:
  std::unique_ptr<Bottom> bottom_;
  std::unique_ptr<Top> top_;
};
using Planned = Stack<PlannedResource, CachingAllocator>;

std::optional<double> reserved_over_allocated(const Results& results, const std::string& name) {
  for (const VariantResult& r : results)
    if (r.name == name && r.outcome == VariantResult::Outcome::ok && r.peak_reserved)
      return double(r.peak_reserved) / double(r.peak_allocated);
  return std::nullopt;
}

Chapter caching_allocator(const Config& config) {
  const nn::TransformerSpec spec = transformer_of(config);
  struct Shared {
    std::vector<data::TextSampler> text[2];
    std::size_t arena[2] = {}, planned[2] = {}, deviations[2] = {};
    Planned* current = nullptr;  // the planned resource that was made last: its variant is made right after
    Pieces best_fit, ours;
    Emptied emptied;
    std::size_t late = 0, early = 0;
    bool demonstrated = false;
  };
  const auto shared = std::make_shared<Shared>();
  for (const bool varying : {false, true})
    for (std::size_t k = 0; k < kRound; ++k) {
      Config length = config;
      length.seq = length_of(k, config.seq, varying);
      shared->text[varying].push_back(text_for(length, spec, /*ragged=*/false));
    }

  Chapter chapter;
  chapter.title = "allocators";
  using MakeResource = std::function<std::unique_ptr<MemoryResource>(std::size_t)>;
  const std::vector<std::pair<std::string, MakeResource>> allocators = {
      {"cudaMalloc",
       [](std::size_t budget) -> std::unique_ptr<MemoryResource> {
         auto device = std::make_unique<CudaResource>();
         auto limit = std::make_unique<LimitingResource>(*device, budget);
         return std::make_unique<Stack<LimitingResource, CudaResource>>(std::move(device), std::move(limit));
       }},
      {"cudaMallocAsync", [](std::size_t budget) { return std::make_unique<AsyncResource>(0, budget); }},
      {"cudaMallocAsync, kept", [](std::size_t budget) { return std::make_unique<AsyncResource>(UINT64_MAX, budget); }},
      {"best fit", [](std::size_t budget) { return std::make_unique<BestFitAllocator>(budget); }},
      {"ours",
       [](std::size_t budget) { return std::make_unique<CachingAllocator>(CachingAllocator::Options{budget}); }},
      {"ours, planned", [shared](std::size_t budget) -> std::unique_ptr<MemoryResource> {
         auto pages = std::make_unique<CachingAllocator>(CachingAllocator::Options{budget});
         auto plan = std::make_unique<PlannedResource>(*pages);
         auto both = std::make_unique<Planned>(std::move(pages), std::move(plan));
         shared->current = both.get();
         return both;
       }}};
  for (const bool varying : {false, true})
    for (const auto& [name, resource] : allocators) {
      const bool planned = name == "ours, planned";
      Agreement agreement;
      if (varying) agreement = differs_by_design("other texts; checked among themselves");
      chapter.variants.push_back({
          .name = varying ? "varying, " + name : name,
          .batch = config.batch,
          .predicted = [=](std::size_t batch) { return Rounds::predicted(spec, config.seq, batch); },
          .agreement = agreement,
          .make = [=](Context& context, std::size_t batch) -> std::unique_ptr<Workload> {
            return std::make_unique<Rounds>(context, spec, shared->text[varying], batch,
                                            planned ? &shared->current->top() : nullptr);
          },
          .resource = resource,
      });
    }

  const auto demonstrate = [shared] {  // once, before the claims
    if (std::exchange(shared->demonstrated, true)) return;
    try {
      const Stream stream;
      BestFitAllocator best_fit(kPiecesLimit);
      CachingAllocator ours({.limit = kPiecesLimit}), cache;
      shared->best_fit = in_pieces(best_fit, kPiecesLimit, stream);
      shared->ours = in_pieces(ours, kPiecesLimit, stream);
      shared->emptied = empty_cache_with_live_blocks(cache, stream);
      shared->late = chain_peak(cache, stream, false);
      shared->early = chain_peak(cache, stream, true);
    } catch (const OutOfMemory&) {  // the device has less than these need: nothing is claimed then
    }
  };
  const auto if_demonstrated = [=](double value) { return shared->early ? std::optional(value) : std::nullopt; };
  using Measured = std::optional<double>;
  chapter.claims = {
      {"a caching allocator wastes a third of the memory", "reserved / allocated at the peaks, ours, varying lengths",
       1.3, 1e9, [](const Results& r) { return reserved_over_allocated(r, "varying, ours"); }},
      {"a request smaller than the free memory succeeds",
       "1 when best fit served a quarter of the limit with half free", 1, 1,
       [=](const Results&) -> Measured { return demonstrate(), if_demonstrated(shared->best_fit.served); }},
      {"moving pages makes one block of the pieces", "1 when ours served the same request", 1, 1,
       [=](const Results&) -> Measured { return demonstrate(), if_demonstrated(shared->ours.served); }},
      {"empty_cache gives all memory back that is not live", "bytes given back / reserved and not live", 1, 1,
       [=](const Results&) -> Measured {
         demonstrate();
         return if_demonstrated(double(shared->emptied.given) /
                                double(shared->emptied.reserved - shared->emptied.live));
       }},
      {"it makes no difference when a tensor is freed", "peak of a chain, freed late / freed early", 1, 1,
       [=](const Results&) -> Measured {
         return demonstrate(), if_demonstrated(double(shared->late) / double(shared->early));
       }},
  };

  chapter.after = [=](const Results& results, Report& report) {
    std::optional<std::uint64_t> varying;
    for (const VariantResult& r : results) {
      if (r.name.rfind("varying", 0) != 0 || !r.measured) continue;
      if (!varying) varying = r.fingerprint;
      report.check(*varying == r.fingerprint, fmt::format("{}: other bits than the other allocators'", r.name));
    }
    demonstrate();
    for (const auto& [name, pieces] : {std::pair("best fit", &shared->best_fit), std::pair("ours", &shared->ours)})
      report.line(fmt::format("{}: {} free, the largest piece {}; asked for {}: {}", name, format_bytes(pieces->free),
                              format_bytes(pieces->largest), format_bytes(pieces->asked),
                              pieces->served ? "served" : "OOM"));
    const Emptied& e = shared->emptied;
    report.line(fmt::format("empty_cache: {} reserved, {} live, {} given back", format_bytes(e.reserved),
                            format_bytes(e.live), format_bytes(e.given)));
    report.line(fmt::format("a chain of layers peaks at {}; at {} when each input is freed before the next allocation",
                            format_bytes(shared->late), format_bytes(shared->early)));
    report.line("");
    report.figure("pieces_free_bytes", double(shared->ours.free));
    report.figure("empty_cache_given_bytes", double(e.given));
  };
  return chapter;
}

}  // namespace

int main(int argc, char** argv) {
  const Defaults full{.model = "bytes-gpt", .batch = 8, .steps = 6, .budget = std::size_t(64) << 20, .seq = 128};
  const Defaults quick{.model = "gpt:2-2-16", .batch = 4, .steps = 1, .budget = std::size_t(10) << 20, .seq = 16};
  return run_chapter(argc, argv, full, quick, caching_allocator);
}
