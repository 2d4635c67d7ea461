// SPDX-License-Identifier: MIT
#pragma once
// Output of tessera-plan for a line of flags.
#include <sstream>
#include <string>
#include <vector>

#include "lib/tools/plan/run_plan.h"
#include "tessera/core/json.h"
#include "tests/support/test.hpp"

namespace tessera::programs {

struct Answer {
  int code = 0;
  std::string out, err;
};

inline Answer ask(const std::string& line) {
  std::vector<std::string> arguments;
  std::istringstream in(line);
  for (std::string word; in >> word;) arguments.push_back(word);
  std::ostringstream out, err;
  const int code = run_plan(arguments, out, err);
  return {code, out.str(), err.str()};
}

inline Json json_of(const std::string& line) {
  const Answer answer = ask(line + " --json");
  INFO(answer.err);
  REQUIRE((answer.code == 0 || answer.code == 3));
  return Json::parse(answer.out, {}, "plan");
}

}  // namespace tessera::programs
