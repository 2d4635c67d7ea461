// SPDX-License-Identifier: MIT
#include "lib/metrics/table.h"

#include <limits>

#include "tests/support/test.hpp"

using namespace tessera::metrics;

namespace {

Table made() {
  return {.columns = {{.key = "row", .title = "row", .is_text = true},
                      {.key = "tokens", .title = "tokens/s"},
                      {.key = "loss", .title = "loss", .decimals = 2},
                      {.key = "verdict", .title = "verdict", .is_text = true}},
          .rows = {{{.text = "a"}, {.number = 1}, {}, {.text = "PASS"}},
                   {{.text = "bcde"}, {.number = 20}, {.number = 7.25}, {.text = "a|b,c"}}}};
}

std::string shown(double number, const Column& column) {
  return cell_text({.number = number}, column);
}

}  // namespace

TEST_CASE("columns that do not fit the window follow below, behind the first one") {
  Table table = made();
  const std::string whole =
      "row   tokens/s  loss  verdict\na        1.000     –  PASS\nbcde     20.00  7.25  a|b,c\n";
  CHECK(text_table(table) == whole);
  CHECK(text_table(table, {.width = 29}) == whole);
  CHECK(text_table(table, {.width = 20}) ==
        "row   tokens/s  loss\na        1.000     –\nbcde     20.00  7.25\n"
        "\nrow   verdict\na     PASS\nbcde  a|b,c\n");
  CHECK(text_table(table, {.width = 5}) ==
        "row   tokens/s\na        1.000\nbcde     20.00\n"
        "\nrow   loss\na        –\nbcde  7.25\n"
        "\nrow   verdict\na     PASS\nbcde  a|b,c\n");
  CHECK(text_table({}).empty());
}

TEST_CASE("a column has a least width, and titles are left out where none is asked for") {
  Table table = made();
  table.columns.resize(2);
  for (auto& row : table.rows) row.resize(2);
  table.columns[0].width = 6;
  table.columns[1].width = 7;
  table.rows[1][0].text = "b\nc";
  CHECK(text_table(table, {.between = 0, .titles = false}) == "a       1.000\nb c     20.00\n");
}

TEST_CASE("a pipe table keeps bars and ends of lines out of its rows") {
  Table table = made();
  table.unknown = "-";
  table.rows[0][0].text = "a\nb";
  CHECK(markdown_table(table) ==
        "| row | tokens/s | loss | verdict |\n| --- | ---: | ---: | --- |\n"
        "| a b | 1.000 | - | PASS |\n| bcde | 20.00 | 7.25 | a\\|b,c |\n");
}

TEST_CASE("CSV has whole numbers under the keys, and nothing for what is unknown") {
  Table table = made();
  table.columns[1].scale = 1000;
  table.rows[0][1].number = 0.123456789;
  table.rows[0][1].text = "some";
  CHECK(csv_table(table) ==
        "row,tokens,loss,verdict\na,0.123456789,,PASS\nbcde,20.0,7.25,\"a|b,c\"\n");
}

TEST_CASE("a column's format: scale, decimals, thousands and sign") {
  CHECK(shown(1234567.8, {}) == "1,234,568");
  CHECK(shown(1234567.8, {.decimals = 1}) == "1,234,567.8");
  CHECK(shown(1234567.8, {.decimals = 1, .thousands = false}) == "1234567.8");
  CHECK(shown(0.25, {.scale = 100, .decimals = 1, .sign = true}) == "+25.0");
  CHECK(shown(-1e-9, {.decimals = 1}) == "0.0");
  CHECK(shown(-1e-9, {.decimals = 1, .sign = true}) == "+0.0");
  CHECK(shown(-1234, {.decimals = 0, .sign = true}) == "-1,234");
  CHECK(shown(1234, {.decimals = 0, .sign = true}) == "+1,234");
  CHECK(shown(std::numeric_limits<double>::infinity(), {}) == "–");
  CHECK(cell_text({}, {}, "?") == "?");
}
