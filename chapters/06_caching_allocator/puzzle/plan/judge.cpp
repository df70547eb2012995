#include "bench/puzzling/judge.h"
struct Tensor {
  size_t bytes;
  int first, last;
};
char* place(const Tensor* tensors, int count, size_t* offset);

using namespace oomlab::puzzle;

namespace {

bool together(const Tensor& a, const Tensor& b) { return a.first <= b.last && b.first <= a.last; }

// Largest first, each at the lowest offset that is free in its steps.
std::size_t largest_first(const std::vector<Tensor>& tensors) {
  std::vector<int> order(tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = int(i);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return tensors[a].bytes > tensors[b].bytes; });
  std::vector<std::size_t> offset(tensors.size());
  std::vector<int> placed;
  std::size_t total = 0;
  for (const int i : order) {
    std::vector<std::pair<std::size_t, std::size_t>> taken;
    for (const int j : placed)
      if (together(tensors[i], tensors[j])) taken.push_back({offset[j], offset[j] + counted(tensors[j].bytes)});
    std::sort(taken.begin(), taken.end());
    std::size_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (begin >= at + counted(tensors[i].bytes)) break;
      at = std::max(at, end);
    }
    offset[i] = at;
    placed.push_back(i);
    total = std::max(total, at + counted(tensors[i].bytes));
  }
  return total;
}

}  // namespace

void oomlab::puzzle::judge_puzzle() {
  for (const int count : {size(random_between(60, 90), 12), 1, 20}) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < count; ++i) {
      const int first = random_between(0, count);
      tensors.push_back({std::size_t(random_between(1, 400)) * 997, first, first + random_between(0, 1 + count / 4)});
    }
    if (count == 20)  // a chain: each tensor meets the one before and the one after
      for (int i = 0; i < count; ++i) tensors[i] = {std::size_t(1000 * (i + 1)), i, i + 1};
    Allowed allowed;
    allowed.no_kernel = allowed.keeps_memory = true;
    Case now(std::to_string(count) + " tensors", largest_first(tensors) / 100 * 102 + 512, allowed);
    std::vector<std::size_t> offset(count, 1);
    char* block = nullptr;
    now.call([&] { block = place(tensors.data(), count, offset.data()); });
    for (int i = 0; i < count; ++i) {
      const std::string one = std::to_string(i);
      if (offset[i] % 512)
        refuse("tensor " + one + " is not at a multiple of 512.", "张量 " + one + " 的偏移不是 512 的倍数。");
      if (offset[i] + tensors[i].bytes > now.live())
        refuse("tensor " + one + " reaches past the end of the block.", "张量 " + one + " 超出了块的末尾。");
      for (int j = 0; j < i; ++j)
        if (together(tensors[i], tensors[j]) && offset[i] < offset[j] + tensors[j].bytes &&
            offset[j] < offset[i] + tensors[i].bytes)
          refuse("tensors " + std::to_string(j) + " and " + one + " live in the same step and have the same bytes.",
                 "张量 " + std::to_string(j) + " 与 " + one + " 在同一步存活，却占用相同的字节。");
    }
    if (release_as_reader(block))
      refuse("what place() returned is not the block that it allocated.", "place() 返回的不是它分配的块。");
  }
}
