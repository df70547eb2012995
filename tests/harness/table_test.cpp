// Tables of typed cells: what is printed of them, and what the result file has.
#include "harness/table.h"

#include <gtest/gtest.h>

#include <stdexcept>

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

}  // namespace
}  // namespace oomlab
