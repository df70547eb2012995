#include "bench/puzzling/judge.h"
int largest_batch(int most, cudaError_t (*step)(int batch));

using namespace oomlab::puzzle;

namespace {

std::size_t fixed_bytes, slope_bytes;
int tries;

cudaError_t step(int batch) {
  ++tries;
  void* weights = nullptr;
  void* activations = nullptr;
  if (batch < 1) return cudaErrorInvalidValue;
  if (const cudaError_t error = allocate_as_reader("weights", &weights, fixed_bytes)) return error;
  const cudaError_t error = allocate_as_reader("activations", &activations, slope_bytes * std::size_t(batch));
  if (!error) (void)release_as_reader(activations);
  (void)release_as_reader(weights);
  return error;
}

void find(int most, int largest) {
  Allowed allowed;
  allowed.failed_allocations = allowed.no_kernel = true;
  fixed_bytes = std::size_t(random_between(100, 900)) * 512;
  slope_bytes = std::size_t(random_between(2, 9)) * 512;
  Case now("at most " + std::to_string(most),
           fixed_bytes + slope_bytes * std::size_t(largest) + (largest < most ? 512 : 0), allowed);
  tries = 0;
  int found = -1;
  now.call([&] { found = largest_batch(most, step); });
  if (found != largest) {
    const std::string f = std::to_string(found), l = std::to_string(largest);
    refuse("the answer is " + f + ", and the largest batch that fits is " + l + ".",
           "答案是 " + f + "，而能放下的最大 batch 是 " + l + "。");
  }
  const int allowed_tries = 2 * int(std::ceil(std::log2(most))) + 3;
  if (tries > allowed_tries) {
    const std::string t = std::to_string(tries), a = std::to_string(allowed_tries);
    refuse(t + " tries, and " + a + " are allowed: each of them is a whole training step.",
           "试了 " + t + " 次，只允许 " + a + " 次：每次都是完整的一步训练。");
  }
}

}  // namespace

void oomlab::puzzle::judge_puzzle() {
  find(1, 1);
  find(64, 0);
  find(100, 100);
  find(1000, random_between(513, 999));
  find(4096, random_between(2, 1500) * 2 + 1);
  find(3, 2);
}
