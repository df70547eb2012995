// Phases are ranges on a profiler's timeline. This program is its own profiler: NVTX asks a symbol of this name for
// one.

#include <gtest/gtest.h>
#define NVTX_NO_IMPL  // the types only; the ranges are those of cuda/device/backend.cpp
#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

#include "memory/ledger.h"

namespace {

std::vector<std::string> seen;

int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* range) {
  seen.push_back(std::string("begin ") + range->message.ascii);
  return 0;
}
int NVTX_API pop(nvtxDomainHandle_t) {
  seen.emplace_back("end");
  return 0;
}
int NVTX_API attach(NvtxGetExportTableFunc_t table_of) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

}  // namespace

extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = attach;
}

namespace oomlab {
namespace {

TEST(Ranges, ArePhasesAndWhatIsNamed) {
  Ledger ledger;
  {
    const NamedRange variant("full batch, memory");
    const Phase step(ledger, "step");
    { const Phase forward(ledger, "forward"); }
    { const Phase forward(ledger, "forward"); }
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"begin full batch, memory", "begin step", "begin forward", "end",
                                            "begin forward", "end", "end", "end"}));
}

}  // namespace
}  // namespace oomlab
