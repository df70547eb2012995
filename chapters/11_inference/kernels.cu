// The kernels that take long to compile, once: for the program, its tests, and chapter 12, which builds on them.

#include "cached_attention.h"
#include "row_products.h"

namespace oomlab::inference {

template void row_products(Context&, RowsOf<float>, const float*, const float*, float*, std::size_t, std::size_t,
                           std::size_t, bool);
template void row_products(Context&, RowsOf<__half>, const __half*, const __half*, __half*, std::size_t, std::size_t,
                           std::size_t, bool);
template void row_products(Context&, RowsOf<__half>, const __half*, const __half*, float*, std::size_t, std::size_t,
                           std::size_t, bool);
template void row_products(Context&, RowsOf<__nv_bfloat16>, const __nv_bfloat16*, const __nv_bfloat16*, __nv_bfloat16*,
                           std::size_t, std::size_t, std::size_t, bool);
template void row_products(Context&, RowsOf<__nv_bfloat16>, const __nv_bfloat16*, const __nv_bfloat16*, float*,
                           std::size_t, std::size_t, std::size_t, bool);

template void attend_cached(Context&, const float*, float*, const CachedRows&, bool, std::size_t, std::size_t,
                            std::uint64_t);
template void attend_cached(Context&, const __half*, __half*, const CachedRows&, bool, std::size_t, std::size_t,
                            std::uint64_t);
template void attend_cached(Context&, const __nv_bfloat16*, __nv_bfloat16*, const CachedRows&, bool, std::size_t,
                            std::size_t, std::uint64_t);

}  // namespace oomlab::inference
