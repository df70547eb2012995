#pragma once

namespace oomlab::test {

/// Bytes of host memory that the program holds through operator new, as malloc counts them.
long long host_heap_bytes() noexcept;
/// The most of it since the last call.
long long take_host_heap_peak() noexcept;

}  // namespace oomlab::test
