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
              {{"name"}, {"peak", Unit::bytes}, {"again", Unit::percent}, {"weight", Unit::bits}, {"note"}}};
  table.rows.push_back({"a", 1536, 12.5, 4.25, "short"});
  table.rows.push_back({"longer", std::size_t(3) << 20, std::optional<double>(), 16.0, ""});
  return table;
}

TEST(Table, PrintsNumbersToTheRightAndUnitsInTheHead) {
  EXPECT_EQ(text_of(example()),
            "what is shown\n"
            "name        peak  again, %  weight, bits  note\n"
            "a       1.50 KiB     12.50         4.250  short\n"
            "longer  3.00 MiB         -        16.000\n");
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
