// How long it takes to plan what no machine has room for, in processor time, as rows for bench/benchmarks. Tests count
// instead what a plan does. Host runtime only.

#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "judged.h"
#include "memory/context.h"
#include "nn/files/checkpoint.h"
#include "oomlab_host.h"

namespace oomlab::bench {
namespace {

template <class Work>
double processor_seconds(Work work) {
  const std::clock_t start = std::clock();
  work();
  return double(std::clock() - start) / CLOCKS_PER_SEC;
}

void allocations() {
  const Stream stream;
  std::vector<void*> blocks(100'000);
  const double seconds = processor_seconds([&] {
    for (std::size_t i = 0; i < blocks.size(); ++i) CUDA_CHECK(cudaMallocAsync(&blocks[i], 1000 + i * 512, stream));
    for (void* block : blocks) CUDA_CHECK(cudaFreeAsync(block, stream));
  });
  stream.synchronize();
  judged("planning", "100,000 blocks of a pool, all live at the same time", seconds, Wanted::at_most, 2, "s");
}

// A file of 64 GiB, of which the disk has nothing but the header.
void weights() {
  const std::size_t rows = std::size_t(1) << 20, columns = std::size_t(1) << 14;
  std::string header =
      R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[1048576,16384],"data_offsets":[0,68719476736]}})";
  header.insert(0, 8, '\0');
  header[0] = static_cast<char>(header.size() - 8);
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("oomlab-planning-" + std::to_string(getpid()));
  std::ofstream(path, std::ios::binary) << header;
  std::filesystem::resize_file(path, header.size() + rows * columns * sizeof(float));
  CudaResource resource;
  Ledger ledger;
  Context context(resource, ledger);
  const std::vector<nn::TensorShape> shapes = {{"token embedding", "", rows, columns}};
  auto value = context.buffer<float>(rows * columns, Category::parameters, "token embedding");
  const std::vector<nn::Parameter> to = {{"token embedding", value.data(), nullptr, value.size()}};
  const double seconds = processor_seconds([&] {
    nn::load_tensors<float>(context, nn::checkpoint_tensors({}, shapes), to, nn::SafetensorsFile(path.string()));
  });
  std::filesystem::remove(path);
  judged("planning", "64 GiB of weights, checked by their header", seconds, Wanted::at_most, 1, "s");
}

}  // namespace
}  // namespace oomlab::bench

int main() {
  return oomlab::bench::run_judged("bench_planning", [] {
    oomlab::host::set_planning(true);
    oomlab::bench::allocations();
    oomlab::bench::weights();
  });
}
