char* place(const Tensor* tensors, int count, size_t* offset) {
  std::vector<int> order(count);
  for (int i = 0; i < count; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](int a, int b) { return tensors[a].bytes > tensors[b].bytes; });
  size_t total = 0;
  for (int n = 0; n < count; ++n) {
    const Tensor& mine = tensors[order[n]];
    std::vector<std::pair<size_t, size_t>> taken;  // by tensors that were placed before, and live at the same time
    for (int k = 0; k < n; ++k) {
      const Tensor& other = tensors[order[k]];
      if (mine.first <= other.last && other.first <= mine.last) taken.push_back({offset[order[k]], offset[order[k]] + rounded(other.bytes)});
    }
    std::sort(taken.begin(), taken.end());
    size_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (begin >= at + rounded(mine.bytes)) break;  // the gap before it is large enough
      at = std::max(at, end);
    }
    offset[order[n]] = at;
    total = std::max(total, at + rounded(mine.bytes));
  }
  char* block = nullptr;
  CHECK(cudaMalloc(&block, total));
  return block;
}
