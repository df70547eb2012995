#pragma once
// A small decoder of the course's style, read by a model in some format.

#include <memory>
#include <string>

#include "../../../tests/nn/device.h"
#include "reading.h"

namespace oomlab::test {

using namespace quantisation;

inline nn::TransformerSpec bytes_llama() { return nn::parse_transformer("bytes-llama"); }
inline data::TextSampler text_of(std::size_t seq) {
  return {data::course_text(), {.seq = seq, .seed = train::kTextSeed}};
}

/// A reading in a context of its own, whose ledger has a timeline.
template <class T>
struct Reader {
  CudaResource resource;
  Ledger ledger;
  std::shared_ptr<AllRead> all = std::make_shared<AllRead>();
  std::unique_ptr<Context> context;
  std::unique_ptr<Reading<T>> reading;

  Reader(const Source& source, const Format& format, const Read& of, const QuantisedFile* file = nullptr,
         const std::string& save = "") {
    ledger.record_timeline(true);
    context = std::make_unique<Context>(resource, ledger, kGranule);
    reading = std::make_unique<Reading<T>>(*context, source, format, file, text_of(of.seq), of, "read", all, save);
  }
  /// One step.
  const ReadResult& read() {
    reading->step();
    (void)reading->figure();
    return (*all)["read"];
  }
};

}  // namespace oomlab::test
