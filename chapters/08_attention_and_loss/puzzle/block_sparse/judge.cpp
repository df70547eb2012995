#include "bench/puzzling/judge.h"
void attention(const float* q, const float* k, const float* v, const unsigned char* mask, float* out, int n, int d);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  // The scores of a row of the longest do not fit in a block's shared memory.
  for (const int side : {size(random_between(14, 20), 4), 1, size(776, 3)}) {
    const bool is_long = side > 100;
    const int n = 16 * side, d = is_long ? 5 : random_between(5, 12);
    Case now(std::to_string(n) + " keys of " + std::to_string(d), 4 * bytes_of<float>(n * d) + counted(side * side));
    // Some scores are far below the first ones, some far above: the running maximum has to move.
    std::vector<float> q = random_numbers(n * d, 6), k = random_numbers(n * d, 6), v = random_numbers(n * d);
    for (int j = 0; j < n; ++j)
      for (int c = 0; c < d; ++c) k[j * d + c] *= float(j % 40) / 20;
    std::vector<unsigned char> mask(side * side);
    for (unsigned char& m : mask) m = random_between(0, is_long ? side / 2 : 2) == 0;
    const int unseen = random_between(0, side - 1);
    for (int j = 0; j < side; ++j) {
      mask[(side - 1) * side + j] = 0;  // the last block's queries look at nothing
      mask[j] = 1;                      // the first block's look at all, so at two at least where there are three,
    }
    for (int i = 0; i < side; ++i) mask[i * side + unseen] = side == 1;  // but for these keys, which nobody looks at
    const float* dq = now.input("q", q);
    const float* dk = now.input("k", k);
    const float* dv = now.input("v", v);
    const unsigned char* dm = now.input("mask", mask);
    if (side > 1)
      for (const float* array : {dk, dv}) now.forbid(array + unseen * 16 * d, 16 * d * sizeof(float));
    float* out = now.to_fill<float>("out", n * d);
    now.call([&] { attention(dq, dk, dv, dm, out, n, d); });
    std::vector<float> wanted(n * d);
    for (int i = 0; i < n; ++i) {
      std::vector<int> seen;
      for (int j = 0; j < n; ++j)
        if (!mask[i / 16 * side + j / 16])
          j |= 15;
        else
          seen.push_back(j);
      std::vector<double> score(seen.size()), value(d);
      double largest = -INFINITY, sum = 0;
      for (std::size_t s = 0; s < seen.size(); ++s) {
        for (int c = 0; c < d; ++c) score[s] += double(q[i * d + c]) * k[seen[s] * d + c];
        score[s] /= std::sqrt(double(d));
        largest = std::max(largest, score[s]);
      }
      for (std::size_t s = 0; s < seen.size(); ++s) {
        const double e = std::exp(score[s] - largest);
        sum += e;
        for (int c = 0; c < d; ++c) value[c] += e * v[seen[s] * d + c];
      }
      for (int c = 0; c < d; ++c) wanted[i * d + c] = float(sum > 0 ? value[c] / sum : 0);
    }
    now.equal("out", now.read(out, n * d), wanted, 1e-3, d);
  }
}
