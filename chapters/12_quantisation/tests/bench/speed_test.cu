// A layer's product with one row, as each token of generation needs it, in every format against FP32: as ratios of
// times within one run, in turns, on a matrix of 64 MiB in FP32.
//
// On a processor FP32 is limited by memory, INT8 less so, and 4 bits no more: taking them apart costs as much as they
// save. NF4 looks each weight up in its code, one by one, because no compiler makes a vector of that.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <vector>

#include "harness/chapter.h"
#include "nn/ops.h"
#include "products.h"

namespace oomlab::quantisation {
namespace {

TEST(Speed, OneRowIsNotSlowerThanInFp32) {
  constexpr std::size_t in = 4096, out = 4096, pairs = 20;
  AsyncResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  struct Way {
    const char* name;
    double most;  // of FP32's time
    Format format;
    Matrix<float> matrix = {};
    std::vector<double> seconds = {};
  };
  std::vector<Way> ways;
  ways.push_back({"FP32", 1.0, {}});
  ways.push_back({"INT8 per tensor", 1.0, {.form = Form::int8_tensor}});
  ways.push_back({"INT8 per row", 1.0, {.form = Form::int8_row}});
  ways.push_back({"INT4, groups of 128", 1.15, {.form = Form::int4}});
  ways.push_back({"NF4", 6.0, {.form = Form::nf4}});
  ways.push_back({"INT8 dynamic", 1.0, {.form = Form::int8_row, .dynamic = true}});
  for (Way& way : ways) {
    way.matrix = Matrix<float>(context, way.format, way.name, out, in);
    Loading loading(context, loading_bytes(way.format, out, in));
    way.matrix.encode(context, loading, [&](Context& c, std::size_t first, std::size_t count, float* to) {
      nn::fill_uniform_part(
          c, to, {.rows = 1, .columns = count, .first_row = 0, .first_column = first, .all_columns = in * out}, 1.0f, 1,
          1);
    });
  }
  auto x = context.buffer<float>(in, Category::data, "x"), y = context.buffer<float>(out, Category::data, "y");
  nn::fill_uniform(context, x.data(), in, 1.0f, 1, 2);
  DynamicScratch scratch(context, 1, in, out);
  const auto run = [&](Way& way) {
    context.synchronize();
    const auto start = std::chrono::steady_clock::now();
    multiply<float>(context, way.matrix, {x.data(), in}, nullptr, y.data(), 1, false, scratch);
    context.synchronize();
    way.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  };
  // What other programs do to caches and clocks can cost more than the limits, but not three times in a row.
  std::vector<double> ratios(ways.size());
  const auto slow = [&](std::size_t w) { return ratios[w] > ways[w].most; };
  for (int attempt = 0; attempt < 3; ++attempt) {
    for (Way& way : ways) run(way), way.seconds.clear();
    for (std::size_t pair = 0; pair < pairs; ++pair)
      for (Way& way : ways) run(way);
    bool good = true;
    for (std::size_t w = 0; w < ways.size(); ++w) {
      std::vector<double> of;
      for (std::size_t pair = 0; pair < pairs; ++pair) of.push_back(ways[w].seconds[pair] / ways[0].seconds[pair]);
      ratios[w] = median(of);
      good = good && !slow(w);
      std::printf("%-20s %6.2f ms, %5.2f x FP32's, %5.1f GB/s of codes and scales\n", ways[w].name,
                  1e3 * median(ways[w].seconds), ratios[w],
                  double(ways[w].matrix.stored_bytes()) / median(ways[w].seconds) / 1e9);
    }
    if (good) break;
  }
  for (std::size_t w = 0; w < ways.size(); ++w) EXPECT_LE(ratios[w], ways[w].most) << ways[w].name;
}

}  // namespace
}  // namespace oomlab::quantisation
