#include "bench/puzzling/judge.h"
void backward(const float* x, const float* dy, const float* W, const float* A, const float* B, float s, float* dA,
              float* dB, float* dx, int batch, int in, int out, int rank);

using namespace oomlab::puzzle;

namespace {

// a^T b, of a [n, p] and b [n, q].
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, int n, int p, int q) {
  std::vector<double> c(std::size_t(p) * q);
  for (int k = 0; k < n; ++k)
    for (int i = 0; i < p; ++i)
      for (int j = 0; j < q; ++j) c[std::size_t(i) * q + j] += a[std::size_t(k) * p + i] * b[std::size_t(k) * q + j];
  return c;
}
std::vector<double> transposed(const std::vector<double>& a, int rows, int columns) {
  std::vector<double> t(a.size());
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) t[std::size_t(j) * rows + i] = a[std::size_t(i) * columns + j];
  return t;
}
std::vector<double> doubles(const std::vector<float>& a) { return {a.begin(), a.end()}; }
std::vector<float> floats(const std::vector<double>& a, double scale) {
  std::vector<float> b(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) b[i] = float(scale * a[i]);
  return b;
}

}  // namespace

void oomlab::puzzle::judge_puzzle() {
  for (const int round : {0, 1, 2}) {
    const int batch = round == 1 ? 1 : size(random_between(20, 30), 6), rank = random_between(2, 5),
              in = size(random_between(140, 180), random_between(20, 30)),
              out = size(random_between(140, 180), random_between(20, 30));
    Case now("batch " + std::to_string(batch) + ", " + std::to_string(in) + " to " + std::to_string(out) + ", rank " +
                 std::to_string(rank),
             2 * bytes_of<float>(batch * in) + bytes_of<float>(batch * out) + bytes_of<float>(out * in) +
                 2 * bytes_of<float>(rank * in) + 2 * bytes_of<float>(out * rank) + bytes_of<float>(batch * rank));
    const std::vector<float> x = random_numbers(batch * in), dy = random_numbers(batch * out),
                             w = random_numbers(out * in), a = random_numbers(rank * in);
    // Before the first step B is zero, and so is the gradient of A; that of B is not.
    const std::vector<float> b = round == 2 ? std::vector<float>(out * rank) : random_numbers(out * rank);
    const float s = 0.25f * float(random_between(1, 8));
    const float* device_x = now.input("x", x);
    const float* device_dy = now.input("dy", dy);
    const float* device_w = now.input("W", w);
    const float* device_a = now.input("A", a);
    const float* device_b = now.input("B", b);
    float* da = now.to_fill<float>("dA", rank * in);
    float* db = now.to_fill<float>("dB", out * rank);
    float* dx = now.to_fill<float>("dx", batch * in);
    now.call([&] { backward(device_x, device_dy, device_w, device_a, device_b, s, da, db, dx, batch, in, out, rank); });
    const std::vector<double> dw = product(doubles(dy), doubles(x), batch, out, in);
    std::vector<double> whole = product(transposed(doubles(b), out, rank), doubles(a), rank, out, in);
    for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = w[i] + s * whole[i];
    now.equal("dB", now.read(db, out * rank),
              floats(product(transposed(dw, out, in), transposed(doubles(a), rank, in), in, out, rank), s), 2e-3, rank);
    now.equal("dA", now.read(da, rank * in), floats(product(doubles(b), dw, out, rank, in), s), 2e-3, in);
    now.equal("dx", now.read(dx, batch * in),
              floats(product(transposed(doubles(dy), batch, out), whole, out, batch, in), 1), 2e-3, in);
  }
}
