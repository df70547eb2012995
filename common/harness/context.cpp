// The context that variants run in.

#include "cuda/raii.h"
#include "harness/chapter.h"
#include "memory/resource.h"

namespace oomlab {

namespace {

void with_context_over(MemoryResource& memory, const Config& config, const Budgets& budgets, Ledger& ledger,
                       const std::function<void(Context&)>& body) {
  ledger.set_limit_bytes(budgets.device);
  Context context(memory, ledger, config.workspace, config.tf32, budgets.host);
  body(context);
}

void with_context_over_a_pool(const Config& config, const Budgets& budgets, Ledger& ledger,
                              const std::vector<int>& peers, const std::function<void(Context&)>& body) {
  AsyncResource pool;
  pool.open_to_peers(peers);
  LimitingResource limited(pool, budgets.device);
  with_context_over(limited, config, budgets, ledger, body);
}

}  // namespace

void with_context(const Config& config, std::size_t budget, Ledger& ledger, const std::function<void(Context&)>& body) {
  const DeviceGuard guard(config.device);
  with_context_over_a_pool(config, {.device = budget}, ledger, {}, body);
}

void with_context(const Config& config, const Variant& variant, const std::vector<int>& peers, const Budgets& budgets,
                  Ledger& ledger, const std::function<void(Context&)>& body) {
  const DeviceGuard guard(config.device);
  if (!variant.resource) return with_context_over_a_pool(config, budgets, ledger, peers, body);
  with_context_over(*variant.resource(budgets.device), config, budgets, ledger, body);
}

}  // namespace oomlab
