// FAILS: over_budget
char* place(const Tensor* tensors, int count, size_t* offset) {
  size_t largest = 0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, rounded(tensors[i].bytes));
  for (int i = 0; i < count; ++i) offset[i] = size_t(i) * largest;  // places of one size: simple, and enormous
  char* block = nullptr;
  CHECK(cudaMalloc(&block, largest * count));
  return block;
}
