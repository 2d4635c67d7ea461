// The layout fuzzer by hand, for as long as wanted:
//   fuzz_layouts [--seconds N] [--seed N] [--first N] [--cases N] [--only-strategy NAME]...
//                [--only-model NAME]... [--case 'LINE'] [--no-shrink] [--with-known] [--verbose]
// Exits 1 when a case failed, or when more than half of them were refused.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tessera/core/error.h"
#include "tessera/testing/fuzz.h"
#include "tests/fuzz/known.h"
#include "tests/fuzz/language_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

FuzzOptions parse(int argc, char** argv) {
  FuzzOptions options;
  options.families.merge(language_model_families());
  options.leave_out = known_defect;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      check(i + 1 < argc, ErrorCode::kInvalidArgument, flag, " needs a value");
      return argv[++i];
    };
    if (flag == "--seconds") {
      options.seconds = std::stod(value());
    } else if (flag == "--seed") {
      options.seed = std::stoull(value());
    } else if (flag == "--first") {
      options.first = std::stoll(value());
    } else if (flag == "--cases") {
      options.cases = std::stoll(value());
    } else if (flag == "--only-strategy") {
      options.only_strategies.push_back(value());
    } else if (flag == "--only-model") {
      options.only_models.push_back(value());
    } else if (flag == "--case") {
      options.line = value();
    } else if (flag == "--no-shrink") {
      options.shrink = false;
    } else if (flag == "--with-known") {
      options.leave_out = nullptr;
    } else if (flag == "--verbose") {
      options.verbose = true;
    } else {
      fail(ErrorCode::kInvalidArgument, "unknown flag ", flag);
    }
  }
  if (!options.line.empty()) options.leave_out = nullptr;
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const FuzzSummary summary = fuzz_layouts(FuzzStrategyFactory(make_strategy), parse(argc, argv));
    std::fputs(to_text(summary).c_str(), stdout);
    return summary.good() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz_layouts: %s\n", error.what());
    return 2;
  }
}
