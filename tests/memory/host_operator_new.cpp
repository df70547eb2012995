// Makes operator new a fault point of the program it is linked into, beside the calls of the host runtime. A
// file of its own: inlined into its callers, the pairing of new with free would look like a mistake to the
// compiler.

#include <oomlab_host.h>

#include <cstdlib>
#include <new>

namespace {

void* allocate_or_null(std::size_t bytes) noexcept {
  if (!oomlab::host::inside_runtime() && oomlab::host::fault_point("operator new")) return nullptr;
  return std::malloc(bytes ? bytes : 1);
}

}  // namespace

void* operator new(std::size_t bytes) {
  if (void* p = allocate_or_null(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) {
  return operator new(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete(void* p, const std::nothrow_t&) noexcept {
  std::free(p);
}
void operator delete[](void* p, const std::nothrow_t&) noexcept {
  std::free(p);
}
