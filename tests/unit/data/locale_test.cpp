// SPDX-License-Identifier: MIT
// Numbers and dates in a host program whose locale has decimal commas and German months.
#include <ctime>

#include "lib/core/number_text.h"
#include "lib/data/jinja/date.h"
#include "lib/data/jinja/template.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/support/comma_locale.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("the host's locale changes no number and no date") {
  const test::CommaLocale locale;
  if (locale.of_c()) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", 0.5);
    CHECK(std::string(text) == "0,5");
  } else {
    WARN("no locale of C is tried: localedef -i de_DE -f UTF-8 fails here");
  }
  std::ostringstream stream;
  stream << 1234567 << " " << 0.5;
  CHECK(stream.str() == "1.234.567 0,5");

  CHECK(printed("%.2f %g %d %s", 1234.5, 0.25, 1234567, "x") == "1234.50 0.25 1234567 x");
  CHECK(concat(1234567, " ", 0.5) == "1234567 0.5");
  CHECK(parse_number("0.5") == 0.5);
  CHECK(parse_number("1e400") == HUGE_VAL);
  CHECK(parse_number("-1e-400") == 0);
  for (const char* bad : {"", "0,5", "0.5 ", " 0.5", "1.5x", "+-1", "++1"}) {
    INFO(bad);
    CHECK_FALSE(parse_number(bad));
  }
  CHECK(leading_number("330.1 GB/s") == 330.1);
  CHECK(leading_number(exact_text(0.1)) == 0.1);
  double real = 0;
  int64_t whole = 0;
  reader_of("0.5 1234567") >> real >> whole;
  CHECK(real == 0.5);
  CHECK(whole == 1234567);
  const Json json = Json::parse("[0.5, 1234567]", {}, "t");
  CHECK(json.dump() == "[0.5,1234567]");
  CHECK(json.at(size_t{0}).as_double() == 0.5);

  const auto day = jinja::parse_date("2026-10-08");
  const auto rendered = [&](const std::string& text) {
    return jinja::Template::parse(text, "t").render({}, day).text;
  };
  CHECK(rendered("{{ 2.345 | round(2) }} {{ 0.5 }} {{ '%.2f' % 1234.5 }} {{ '%d' % 1234567 }}") ==
        "2.35 0.5 1234.50 1234567");
  CHECK(rendered("{{ '{:.1f}'.format(0.25) }} {{ '0.5' | float }} {{ [0.5] | tojson }}") ==
        "0.2 0.5 [0.5]");
  CHECK(rendered("{{ strftime_now('%d %b %B %a %A %x') }}") ==
        "08 Oct October Thu Thursday 10/08/26");
}
