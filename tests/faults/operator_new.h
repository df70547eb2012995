#pragma once

namespace oomlab::test {

/// Bytes of host memory that the program holds through operator new, as malloc counts them.
long long host_heap_bytes() noexcept;

}  // namespace oomlab::test
