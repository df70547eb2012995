// Tables of typed cells: what is printed of them, and what the result file has.
#include "harness/table.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <type_traits>

#include "plan/json_writer.h"

namespace oomlab {
namespace {

Table example() {
  Table table{"example",
              "what is shown",
              {{"name"},
               {"peak", Unit::bytes},
               {"sold", Unit::bytes_10},
               {"again", Unit::percent},
               {"weight", Unit::bits},
               {"work", Unit::flops},
               {"time", Unit::ms},
               {"exact", Unit::ms, 4},
               {"note"}}};
  table.rows.push_back({"a", 1536, 1'668'000, 12.5, 4.25, 14.767e9, 736.4, 3.53931, "short"});
  table.rows.push_back({"longer", std::size_t(3) << 20, 22'018'000'000, std::optional<double>(), 16.0, {}, 0.5, 22, ""});
  return table;
}

TEST(Table, PrintsNumbersToTheRightAndUnitsInTheHead) {
  EXPECT_EQ(text_of(example()),
            "what is shown\n"
            "name        peak       sold  again, %  weight, bits          work    time       exact  note\n"
            "a       1.50 KiB   1.668 MB     12.50         4.250  14.767 GFLOP  736 ms   3.5393 ms  short\n"
            "longer  3.00 MiB  22.018 GB         -        16.000             -  0.5 ms  22.0000 ms\n");
}

TEST(Table, TheResultFileHasExactNumbers) {
  JsonWriter json;
  write_table(json, example());
  const std::string text = json.text();
  EXPECT_NE(text.find("1536"), std::string::npos) << text;
  EXPECT_NE(text.find("3145728"), std::string::npos) << text;
  EXPECT_NE(text.find("null"), std::string::npos) << text;
  EXPECT_NE(text.find("\"percent\""), std::string::npos) << text;
}

TEST(Table, ARowOfAnotherLengthIsRefused) {
  Table table = example();
  table.rows.push_back({"one cell"});
  EXPECT_THROW((void)text_of(table), std::invalid_argument);
}

TEST(Table, LargeNumbersHaveNoExponent) {
  Table table{"large", "large", {{"name"}, {"time", Unit::ms}, {"work", Unit::flops, 1}}};
  table.rows.push_back({"a", 999.4, 999'999e9});
  table.rows.push_back({"b", 999.5, 4'362'845e9});
  table.rows.push_back({"c", 14'250.2, 1e9});
  EXPECT_EQ(text_of(table),
            "large\n"
            "name      time            work\n"
            "a       999 ms  999999.0 GFLOP\n"
            "b      1000 ms    4362.8 TFLOP\n"
            "c     14250 ms       1.0 GFLOP\n");
}

TEST(Table, CellsAreWhatTheirColumnsAre) {
  static_assert(!std::is_constructible_v<Cell, bool> && !std::is_constructible_v<Cell, char>);
  EXPECT_THROW(Cell(std::uint64_t(1) << 63), std::length_error);
  Table table{"mixed", "mixed", {{"name"}, {"peak", Unit::bytes}}};
  table.rows = {{"a", Cell()}};
  EXPECT_NO_THROW((void)text_of(table));
  table.rows = {{"a", "1536"}};
  EXPECT_THROW((void)text_of(table), std::invalid_argument);
  table.rows = {{1536, 1536}};
  EXPECT_THROW((void)text_of(table), std::invalid_argument);
}

}  // namespace
}  // namespace oomlab
