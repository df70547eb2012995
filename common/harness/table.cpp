#include "harness/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "plan/bytes.h"
#include "plan/json_writer.h"

namespace oomlab {
namespace {

std::string in_powers_of_ten(double bytes) {
  const bool large = bytes >= 1e8;
  return fmt::format("{:.3f} {}", bytes / (large ? 1e9 : 1e6), large ? "GB" : "MB");
}

std::string digits(double number, const Column& column) {
  if (column.decimals) return fmt::format("{:.{}f}", number, *column.decimals);
  switch (column.unit) {
    case Unit::percent: return fmt::format("{:.2f}", number);
    case Unit::flops:
    case Unit::bits: return fmt::format("{:.3f}", number);
    case Unit::ratio: return fmt::format("{:.2g}", number);
    case Unit::ms: return number >= 999.5 ? fmt::format("{:.0f}", number) : fmt::format("{:.3g}", number);
    case Unit::bytes:
    case Unit::bytes_10:
    case Unit::text:
    case Unit::count: break;
  }
  return fmt::format("{:g}", number);
}

std::string in_operations(double flops, const Column& column) {
  const bool large = flops >= 1e15;
  return digits(flops / (large ? 1e12 : 1e9), column) + (large ? " TFLOP" : " GFLOP");
}

std::string printed(double number, const Column& column) {
  switch (column.unit) {
    case Unit::bytes: return format_bytes(static_cast<std::size_t>(number));
    case Unit::bytes_10: return in_powers_of_ten(number);
    case Unit::flops: return in_operations(number, column);
    case Unit::ms: return digits(number, column) + " ms";
    case Unit::percent:
    case Unit::bits:
    case Unit::ratio:
    case Unit::text:
    case Unit::count: break;
  }
  return digits(number, column);
}

std::string printed(const Cell& cell, const Column& column) {
  if (const auto* text = std::get_if<std::string>(&cell.value())) return *text;
  if (const auto* number = std::get_if<double>(&cell.value())) return printed(*number, column);
  const auto* whole = std::get_if<std::int64_t>(&cell.value());
  if (!whole) return "-";
  if (column.unit == Unit::count) return fmt::format("{}", *whole);
  return column.unit == Unit::bytes ? format_bytes(static_cast<std::size_t>(*whole)) : printed(double(*whole), column);
}

bool belongs(const Cell& cell, const Column& column) {
  const bool text = std::holds_alternative<std::string>(cell.value());
  const bool nothing = std::holds_alternative<std::monostate>(cell.value());
  return nothing || text == (column.unit == Unit::text);
}

std::string head_of(const Column& column) {
  if (column.unit == Unit::percent) return column.name + ", %";
  return column.unit == Unit::bits ? column.name + ", bits" : column.name;
}

}  // namespace

const char* name_of(Unit unit) {
  constexpr const char* kNames[] = {"text", "bytes", "bytes", "percent", "ratio", "bits", "count", "ms", "flops"};
  return kNames[static_cast<int>(unit)];
}

std::string align(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& left) {
  std::vector<std::size_t> width;
  for (const auto& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const bool to_the_left = c == 0 || (c < left.size() && left[c]);
      line += c == 0 ? "" : "  ";
      line += to_the_left ? fmt::format("{:<{}}", row[c], width[c]) : fmt::format("{:>{}}", row[c], width[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string text_of(const Table& table) {
  std::vector<std::vector<std::string>> rows(1);
  std::vector<bool> left;
  for (const Column& column : table.columns) {
    rows[0].push_back(head_of(column));
    left.push_back(column.unit == Unit::text);
  }
  for (const std::vector<Cell>& row : table.rows) {
    if (row.size() != table.columns.size())
      throw std::invalid_argument(
          fmt::format("table {}: a row of {} cells for {} columns", table.name, row.size(), table.columns.size()));
    rows.emplace_back();
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (!belongs(row[c], table.columns[c]))
        throw std::invalid_argument(
            fmt::format("table {}: text among numbers, or a number as text: '{}'", table.name, table.columns[c].name));
      rows.back().push_back(printed(row[c], table.columns[c]));
    }
  }
  return table.title + "\n" + align(rows, left);
}

void write_table(JsonWriter& json, const Table& table) {
  json.begin_object().member("name", table.name).member("title", table.title).key("columns").begin_array();
  for (const Column& column : table.columns)
    json.begin_object().member("name", column.name).member("unit", name_of(column.unit)).end_object();
  json.end_array().key("rows").begin_array();
  for (const std::vector<Cell>& row : table.rows) {
    json.begin_array();
    for (const Cell& cell : row)
      std::visit(
          [&](const auto& value) {
            if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::monostate>)
              json.null();
            else
              json.value(value);
          },
          cell.value());
    json.end_array();
  }
  json.end_array().end_object();
}

}  // namespace oomlab
