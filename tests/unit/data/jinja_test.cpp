// SPDX-License-Identifier: MIT
// Templates compared with transformers' results (scripts/make_chat_template_fixture.py).
#include <cstdlib>
#include <ctime>

#include "lib/core/file.h"
#include "lib/data/jinja/template.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;
using jinja::Template;

namespace {

using Variables = std::vector<std::pair<std::string, jinja::Value>>;

constexpr std::chrono::sys_days kDay = std::chrono::year(2023) / 11 / 4;

Variables variables_of(const Json& json) {
  Variables variables;
  for (const auto& [name, value] : json.members()) {
    variables.emplace_back(name, jinja::Value::of(value));
  }
  return variables;
}

std::string rendered(const std::string& text, const Variables& variables = {},
                     jinja::RenderLimits limits = {}) {
  return Template::parse(text, "t", limits).render(variables, kDay).text;
}

std::string refusal(const std::string& text, const Variables& variables = {},
                    jinja::RenderLimits limits = {}) {
  return error_of(ErrorCode::kInvalidArgument, [&] { rendered(text, variables, limits); });
}

// Bytes of this many characters of the text.
size_t bytes_of(const std::string& text, int64_t characters) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((text[at] & 0xC0) != 0x80 && characters-- == 0) break;
  }
  return at;
}

}  // namespace

TEST_CASE("templates give the text that transformers gives, and refuse what it refuses") {
  const Json file = Json::parse_file(source_path("tests/unit/data/fixtures/chat_templates.json"));
  const Variables variables = variables_of(file.at("variables"));
  const auto cases = file.at("cases").items();
  CHECK(cases.size() > 600);
  for (const Json& one : cases) {
    const std::string text = one.at("template").as_string();
    INFO(text);
    if (one.at("text").is_null()) {
      INFO("transformers says " << one.at("says").as_string());
      std::string found;
      CHECK(error_of(ErrorCode::kInvalidArgument, [&] { found = rendered(text, variables); }) !=
            "no error");
      CHECK(found.empty());
      continue;
    }
    jinja::Rendered result;
    CHECK(error_of([&] { result = Template::parse(text, "t").render(variables, kDay); }) ==
          "no error");
    CHECK(result.text == one.at("text").as_string());
    const auto marks = one.find("marks") ? one.at("marks").items() : std::vector<Json>();
    REQUIRE(result.marks.size() == marks.size());
    for (size_t i = 0; i < marks.size(); ++i) {
      CHECK(result.marks[i].begin == bytes_of(result.text, marks[i].at(0).as_int64()));
      CHECK(result.marks[i].end == bytes_of(result.text, marks[i].at(1).as_int64()));
    }
  }
}

TEST_CASE("an error of a template names its line, what was found and what there is") {
  CHECK(refusal("a\n\n{{ n | nothing }}")
            .starts_with("t:3: there is no filter 'nothing'; there are abs, "));
  CHECK(refusal("{{ 1 }}\n{{ 1 is nothing }}")
            .starts_with("t:2: there is no test 'nothing'; there are "));
  CHECK(refusal("\n{% nothing %}")
            .starts_with("t:2: there is no tag 'nothing'; there are if, for, "));
  CHECK(refusal("\n\n{{ nothing(1) }}") == "t:3: 'nothing' is undefined");
  CHECK(refusal("{% if true %}\n{% for x in [1] %}{% endif %}") ==
        "t:2: there is no tag 'endif'; there are if, for, set, macro, call, filter, with, raw, "
        "generation, break, continue");
  CHECK(refusal("a\n{% if true %}\nb\n") == "t:3: {% if %} of line 2 is not closed");
  CHECK(refusal("{{ raise_exception('only ' ~ 2) }}") ==
        "t:1: the template refuses this chat: only 2");
  CHECK(refusal("{{ 9223372036854775807 + 1 }}") ==
        "t:1: 9223372036854775807 + 1 is beyond 64 bits");
  CHECK(refusal("{{ 9223372036854775808 }}") == "t:1: 9223372036854775808 is beyond 64 bits");
  CHECK(refusal("{{ '\\ud800' }}") == "t:1: an escape \\u is no character");
  CHECK(refusal("{% for x in [1] recursive %}{% endfor %}") ==
        "t:1: recursive loops are not supported; call a macro instead");
  CHECK(refusal("\xFF") == "t: byte 0 is not valid UTF-8");
}

TEST_CASE("strftime_now writes the day that it is given, in every time zone") {
  const char* zone = std::getenv("TZ");
  const std::string before = zone == nullptr ? "" : zone;
  for (const char* other : {"XXX+12", "XXX-14", "UTC0"}) {
    setenv("TZ", other, 1);
    tzset();
    CHECK(rendered("{{ strftime_now('%d %b %Y %A %B %p %H:%M:%S %j %U %w|%z|%Z|%%s') }}") ==
          "04 Nov 2023 Saturday November AM 00:00:00 308 44 6|||%s");
    CHECK(rendered("{{ strftime_now('%c|%x|%X') }}") ==
          "Sat Nov  4 00:00:00 2023|11/04/23|00:00:00");
  }
  zone == nullptr ? unsetenv("TZ") : setenv("TZ", before.c_str(), 1);
  tzset();
  CHECK(refusal("{{ strftime_now('%_5s') }}") ==
        "t:1: strftime_now: %s depends on a time zone, and only the date is known");
  CHECK(refusal("{{ strftime_now(5) }}") ==
        "t:1: strftime_now needs a format of at most 1000 bytes, like \"%d %b %Y\"");
}

TEST_CASE("what a template may take is bounded") {
  const jinja::RenderLimits small = {.template_bytes = 1000, .output_bytes = 100, .steps = 20'000};
  const auto too_long = [&](const std::string& text) {
    INFO(text);
    CHECK(refusal(text, {}, small).find("takes more than 20000 steps") != std::string::npos);
  };
  too_long("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}");
  too_long("{{ 'a' * 10000000000 }}");
  too_long("{{ [1] * 9000000000000000000 }}");
  too_long(
      "{% set n = namespace(t='a') %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor "
      "%}");
  too_long(
      "{% set n = namespace(t=[1]) %}{% for i in range(99) %}{% set n.t = n.t + n.t %}{% endfor "
      "%}");
  // A small list that contains itself many times.
  const std::string doubled =
      "{% set n = namespace(t=[1]) %}{% for i in range(90) %}{% set n.t = [n.t, n.t] %}{% endfor "
      "%}";
  for (const char* use : {"{{ n.t }}", "{{ n.t | tojson }}", "{{ n.t == [n.t[0], n.t[0]] }}",
                          "{{ [n.t, n.t] | sort }}", "{{ n.t in [n.t] }}", "{{ n.t ~ 1 }}"}) {
    too_long(doubled + use);
  }
  too_long("{{ ('a' * 200000).split('a' * 100000) }}");
  CHECK(refusal("{{ 'ab' * 100 }}", {}, small) == "t:1: the template writes more than 100 bytes");
  CHECK(refusal(std::string(1001, 'a'), {}, small) ==
        "t: 1001 bytes of template, at most 1000 are accepted");
  const auto deep = [](const std::string& open, const std::string& close) {
    std::string text = "{{ ";
    for (int i = 0; i < 5000; ++i) text += open;
    text += "1";
    for (int i = 0; i < 5000; ++i) text += close;
    return refusal(text + " }}");
  };
  CHECK(deep("(", ")").find("lie in one another") != std::string::npos);
  CHECK(deep("-", "").find("lie in one another") != std::string::npos);
  CHECK(deep("not ", "").find("lie in one another") != std::string::npos);
  CHECK(deep("", "+1").find("has more than 200 levels") != std::string::npos);
  CHECK(deep("", "|abs").find("has more than 200 levels") != std::string::npos);
  CHECK(deep("f(", ")").find("lie in one another") != std::string::npos);
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if true %}";
  CHECK(refusal(blocks).find("lie in one another") != std::string::npos);
  CHECK(refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}") ==
        "t:1: more than 600 blocks, expressions and macros are entered in one another");
  CHECK(refusal("{% set n = namespace(t=1) %}{% for i in range(999) %}{% set n.t = [n.t] %}"
                "{% endfor %}") == "t:1: lists and mappings lie deeper than 100 levels");
}

TEST_CASE("what holds itself is freed, and what a loop leaves behind can be called") {
  CHECK(
      rendered("{% set n = namespace() %}{% set n.n = n %}{% macro f() %}{{ n.n.x }}{% endmacro %}"
               "{% set n.f = f %}{% set n.x = 5 %}{{ n.f() }}") == "5");
  CHECK(refusal("{% set n = namespace() %}{% for x in [1] %}{% set n.c = loop.changed %}"
                "{% endfor %}{{ n.c(1) }}") == "t:1: loop.changed is called behind its loop");
  CHECK(refusal("{% set n = namespace() %}{{ n }}") == "t:1: 'namespace' has no text");
}
