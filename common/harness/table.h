#pragma once
// A table of a chapter's own findings, with typed cells: the printed text and the result file are both made from it.

#include <concepts>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace oomlab {

/// What the cells of a column are. Text is printed to the left, numbers to the right.
enum class Unit {
  text,
  bytes,     ///< printed as "1.50 MiB"
  bytes_10,  ///< bytes, too, printed in powers of ten, as cards are sold: "22.018 GB"
  percent,   ///< 12.5 is 12.5 %
  ratio,     ///< a share or a quotient, without a unit
  bits,      ///< of a weight, for example
  count,
  ms,     ///< milliseconds
  flops,  ///< operations, printed as "14.767 GFLOP", from 10^15 on as TFLOP
};
/// As the result file and the schema call it.
const char* name_of(Unit unit);

struct Column {
  std::string name;  ///< the printed head; of percent and bits with the unit behind it
  Unit unit = Unit::text;
  std::optional<int> decimals = {};  ///< printed of a number that is not one of bytes; none: as is usual for the unit
};

/// Text, a number, or nothing where there is none (printed as "-", in the result file null).
class Cell {
 public:
  Cell() = default;
  Cell(const char* text) : value_(std::string(text)) {}
  Cell(std::string text) : value_(std::move(text)) {}
  /// Throws std::length_error for one of 2^63 or more.
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, char>) Cell(T number)
      : value_(static_cast<std::int64_t>(number)) {
    if (!std::in_range<std::int64_t>(number)) throw std::length_error("a cell does not fit 64 bits");
  }
  template <class T>
  requires(std::same_as<T, bool> || std::same_as<T, char>) Cell(T)
  = delete;
  Cell(double number) : value_(number) {}
  template <class T>
  Cell(const std::optional<T>& maybe) : Cell(maybe ? Cell(*maybe) : Cell()) {}
  const auto& value() const { return value_; }

 private:
  std::variant<std::monostate, std::string, std::int64_t, double> value_;
};

struct Table {
  std::string name;   ///< in the result file, in snake_case; no other table of the chapter has it
  std::string title;  ///< the line above it
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows = {};  ///< each with a cell for every column
};

/// Rows of words as aligned columns, a line each: the first to the left, others too where `left` says so.
std::string align(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& left = {});

/// Title, head and rows. Throws std::invalid_argument when a row has more or fewer cells than there are columns, or text
/// where the column has numbers, or the other way round.
std::string text_of(const Table& table);

class JsonWriter;
/// As an element of "tables" in result.schema.json.
void write_table(JsonWriter& json, const Table& table);

}  // namespace oomlab
