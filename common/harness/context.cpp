// The context that variants run in.

#include <algorithm>

#include "cuda/raii.h"
#include "harness/chapter.h"
#include "memory/resource.h"

namespace oomlab {

std::size_t default_workspace(std::size_t budget) {
  const std::size_t twentieth = budget / 20 / kGranule * kGranule;
  return budget == kUnlimited ? kBlasWorkspaceBytes : std::clamp(twentieth, kGranule, kBlasWorkspaceBytes);
}

void with_context(const Config& config, std::size_t budget, Ledger& ledger, const std::function<void(Context&)>& body) {
  const DeviceGuard guard(config.device);
  AsyncResource pool;
  LimitingResource limited(pool, budget);
  ledger.set_limit_bytes(budget);
  Context context(limited, ledger, config.workspace);
  body(context);
}

void with_context(const Config& config, const Variant& variant, std::size_t budget, Ledger& ledger,
                  const std::function<void(Context&)>& body) {
  if (!variant.resource) return with_context(config, budget, ledger, body);
  const DeviceGuard guard(config.device);
  const auto resource = variant.resource(budget);
  ledger.set_limit_bytes(budget);
  Context context(*resource, ledger, config.workspace);
  body(context);
}

}  // namespace oomlab
