// A layer's product with one row, as each token of generation needs it, in every format against FP32: as ratios of
// times within one run, in turns, on a matrix of 64 MiB in FP32.
//
// On a processor FP32 is limited by memory, INT8 less so, and 4 bits no more: taking them apart costs as much as they
// save. NF4 looks each weight up in its code, one by one, because no compiler makes a vector of that.

#include <chrono>
#include <string>
#include <vector>

#include "../../../bench/benchmarks/judged.h"
#include "harness/chapter.h"
#include "nn/ops/values.h"
#include "products.h"

namespace oomlab::quantisation {
namespace {

void judge() {
  constexpr std::size_t in = 4096, out = 4096;
  AsyncResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  struct Way {
    const char* name;
    double most;  // of FP32's time
    Format format;
    Matrix<float> matrix = {};
  };
  std::vector<Way> ways;
  ways.push_back({"FP32", 1.0, {}});
  ways.push_back({"INT8 per tensor", 1.0, {.scheme = Scheme::int8_tensor}});
  ways.push_back({"INT8 per row", 1.0, {.scheme = Scheme::int8_row}});
  ways.push_back({"INT4, groups of 128", 1.15, {.scheme = Scheme::int4}});
  ways.push_back({"NF4", 6.0, {.scheme = Scheme::nf4}});
  ways.push_back({"INT8 dynamic", 1.0, {.scheme = Scheme::int8_row, .dynamic = true}});
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
  std::vector<std::function<double()>> turns;
  for (Way& way : ways)
    turns.push_back([&] {
      context.synchronize();
      const auto start = std::chrono::steady_clock::now();
      multiply<float>(context, way.matrix, {x.data(), in}, nullptr, y.data(), 1, false, scratch);
      context.synchronize();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    });
  const auto seconds = bench::in_turns(40, turns);
  for (std::size_t w = 0; w < ways.size(); ++w)
    fmt::print("{:<20} {:6.2f} ms, {:5.1f} GB/s of codes and scales\n", ways[w].name, 1e3 * bench::median(seconds[w]),
               double(ways[w].matrix.stored_bytes()) / bench::median(seconds[w]) / 1e9);
  for (std::size_t w = 1; w < ways.size(); ++w)
    bench::judged("12_quantisation", std::string("one row, ") + ways[w].name + " / FP32",
                  bench::ratio_in_pairs(seconds[w], seconds[0]), bench::Wanted::at_most, ways[w].most);
}

}  // namespace
}  // namespace oomlab::quantisation

int main() { return oomlab::bench::run_judged("12_quantisation_bench", oomlab::quantisation::judge); }
