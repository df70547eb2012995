#include "plan/quantised/format.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace oomlab::quantised {

DType code_dtype(Scheme scheme) {
  switch (scheme) {
    case Scheme::int8_tensor:
    case Scheme::int8_row: return DType::int8;
    case Scheme::int4: return DType::int4;
    case Scheme::nf4: return DType::nf4;
    case Scheme::as_is: break;
  }
  throw std::invalid_argument("weights that stay as they are have no codes");
}

const char* name_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::as_is: return "as_is";
    case Scheme::int8_tensor: return "int8_tensor";
    case Scheme::int8_row: return "int8_row";
    case Scheme::int4:
    case Scheme::nf4: break;
  }
  return oomlab::name_of(code_dtype(scheme));
}

Parts parts_of(const Format& format, std::uint64_t rows, std::uint64_t count) {
  const auto up = [](std::uint64_t n, std::uint64_t by) { return n / by + (n % by != 0); };
  switch (format.scheme) {
    case Scheme::as_is: return {};
    case Scheme::int8_tensor: return {{{"codes", DType::int8, count}, {"scale", DType::fp32, 1}}};
    case Scheme::int8_row: return {{{"codes", DType::int8, count}, {"scale", DType::fp32, rows}}};
    case Scheme::int4: {
      if (format.group == 0 || count % format.group != 0)
        throw std::invalid_argument("groups of " + std::to_string(format.group) + " do not divide a matrix of " +
                                    std::to_string(rows) + " x " + std::to_string(count / rows) + " weights");
      const std::uint64_t groups = count / format.group;
      return {{{"codes", DType::uint8, kPair / 2 * up(count, kPair)},
               {"scale", DType::bf16, groups},
               {"zero", DType::uint8, up(groups, 2)}}};
    }
    case Scheme::nf4: {
      const std::uint64_t blocks = up(count, kBlock);
      return {{{"codes", DType::uint8, kPair / 2 * up(count, kPair)},
               {"absmax_scale", DType::fp32, up(blocks, kBlocks)},
               {"absmax", DType::int8, blocks},
               {"absmax_mean", DType::fp32, 1}}};
    }
  }
  return {};
}

void MatrixBytes::add(const MatrixBytes& other) {
  stored = checked_sum(stored, other.stored);
  allocated = checked_sum(allocated, other.allocated);
}

MatrixBytes matrix_bytes(const Format& format, std::uint64_t rows, std::uint64_t width, std::uint64_t element_bytes) {
  const std::uint64_t count = checked_product(rows, width);
  if (format.scheme == Scheme::as_is) {
    const std::uint64_t stored = checked_product(count, element_bytes);
    return {stored, round_to_granule(stored)};
  }
  MatrixBytes bytes;
  for (const Part& part : parts_of(format, rows, count)) bytes.add({part.bytes(), round_to_granule(part.bytes())});
  return bytes;
}

std::uint64_t piece_of(const Format& format, std::uint64_t count, std::uint64_t width) {
  const std::uint64_t unit = format.scheme == Scheme::int8_row ? width
                             : format.scheme == Scheme::int4   ? std::lcm(2 * format.group, std::uint64_t(kPair))
                                                               : kBlock;
  const std::uint64_t wanted = std::min(count / 8, std::uint64_t(4) << 20) / unit * unit;
  return std::min(count, std::max(unit, wanted));
}

void LoadingBytes::at_least(const LoadingBytes& other) {
  piece = std::max(piece, other.piece);
  largest = std::max(largest, other.largest);
}

LoadingBytes loading_bytes(const Format& format, std::uint64_t rows, std::uint64_t width) {
  const std::uint64_t count = checked_product(rows, width);
  const std::uint64_t of_number = element_bytes(DType::fp32);
  LoadingBytes bytes{.piece = round_to_granule(checked_product(piece_of(format, count, width), of_number))};
  if (format.scheme == Scheme::int8_tensor || format.scheme == Scheme::nf4)
    bytes.largest = round_to_granule(checked_product((count + kBlock - 1) / kBlock, of_number));
  return bytes;
}

}  // namespace oomlab::quantised
