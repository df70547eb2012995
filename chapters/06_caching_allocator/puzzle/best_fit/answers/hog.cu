// FAILS: over_budget
void* arena_allocate(size_t bytes) {
  char* more = nullptr;  // where the arena is full, there is still cudaMalloc
  CHECK(cudaMalloc(&more, (bytes + step - 1) / step * step));
  return more;
}
void arena_free(void* address) { CHECK(cudaFree(address)); }
