// SPDX-License-Identifier: MIT
// The layout fuzzer as a program:
//   fuzz_layouts [--seconds N] [--seed N] [--first N] [--cases N] [--only-strategy NAME]...
//                [--only-model NAME]... [--case 'LINE'] [--no-shrink] [--with-known] [--verbose]
//                [--failures N] [--least N] [--only-values] [--case-seconds N] [--device cuda]
// At its end it prints the number of passed cases for each value of each option, and lists values
// with fewer than 20. With --least, fewer than N are an error. Exits 1 then, after a failed case,
// or if more than half of the cases were refused. Stops after 5 failed cases, or --failures.
// --only-values skips the checks of memory and communication. A case longer than --case-seconds
// (120) ends the program: a hang, or a busy host. On a GPU all ranks share it, and dropout from the
// device's generator is skipped.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "lib/testing/fuzz.h"
#include "tessera/core/error.h"
#include "tests/fuzz/communication.h"
#include "tests/fuzz/dry_memory.h"
#include "tests/fuzz/exported_programs.h"
#include "tests/fuzz/known.h"
#include "tests/fuzz/language_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

struct Command {
  FuzzOptions options;
  int64_t least = 0;  // 0: not requested
  std::shared_ptr<FuzzedCommunication> communication = std::make_shared<FuzzedCommunication>();
};

at::Device first_of(at::Device device) {
  return device.is_cpu() || device.has_index() ? device : at::Device(device.type(), 0);
}

std::string drawn_elsewhere(const FuzzCase& c) {
  const bool modules = c.model == "modules" && c.blocks.find('D') != std::string::npos;
  const bool attention = c.attention_dropout > 0 && c.model != "bloom";
  return modules || attention ? "dropout that draws from a GPU's generator" : "";
}

Command parse(int argc, char** argv) {
  Command command;
  FuzzOptions& options = command.options;
  options.families.merge(language_model_families());
  options.families.merge(exported_program_families());
  options.leave_out = known_defect;
  options.check_memory = compare_with_dry_run;
  options.check_communication = [all = command.communication](const auto&... of_case) {
    return all->check(of_case...);
  };
  const std::map<std::string, std::function<void()>> switches{
      {"--no-shrink", [&] { options.shrink = false; }},
      {"--with-known", [&] { options.leave_out = nullptr; }},
      {"--only-values",
       [&] {
         options.check_memory = nullptr;
         options.check_communication = nullptr;
       }},
      {"--verbose", [&] { options.verbose = true; }}};
  const std::map<std::string, std::function<void(const std::string&)>> settings{
      {"--seconds", [&](const auto& value) { options.seconds = std::stod(value); }},
      {"--seed", [&](const auto& value) { options.seed = std::stoull(value); }},
      {"--first", [&](const auto& value) { options.first = std::stoll(value); }},
      {"--cases", [&](const auto& value) { options.cases = std::stoll(value); }},
      {"--only-strategy", [&](const auto& value) { options.only_strategies.push_back(value); }},
      {"--only-model", [&](const auto& value) { options.only_models.push_back(value); }},
      {"--device", [&](const auto& value) { options.device = first_of(at::Device(value)); }},
      {"--case", [&](const auto& value) { options.line = value; }},
      {"--failures", [&](const auto& value) { options.most_failures = std::stoull(value); }},
      {"--least", [&](const auto& value) { command.least = std::stoll(value); }},
      {"--case-seconds", [&](const auto& value) { options.case_seconds = std::stod(value); }}};
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (const auto found = switches.find(flag); found != switches.end()) {
      found->second();
      continue;
    }
    const auto found = settings.find(flag);
    check(found != settings.end(), ErrorCode::kInvalidArgument, "unknown flag ", flag);
    check(i + 1 < argc, ErrorCode::kInvalidArgument, flag, " needs a value");
    found->second(argv[++i]);
  }
  if (!options.device.is_cpu()) {
    at::globalContext().lazyInitDevice(options.device.type());
    options.leave_out = [known = options.leave_out](const FuzzCase& c) {
      const std::string text = known ? known(c) : "";
      return text.empty() ? drawn_elsewhere(c) : text;
    };
  }
  if (!options.line.empty()) options.leave_out = nullptr;
  return command;
}

constexpr int64_t kLeast = 20;

// True if every value occurred often enough, or this was not requested.
bool report_rare(const FuzzSummary& summary, int64_t asked) {
  const int64_t least = asked > 0 ? asked : kLeast;
  const auto rare = summary.rarer_than(least);
  std::printf("in fewer than %lld held cases: %s\n", static_cast<long long>(least),
              rare.empty() ? "nothing" : "");
  for (const std::string& value : rare) std::printf("  %s\n", value.c_str());
  return asked == 0 || rare.empty();
}

void report(const FuzzedCommunication& communication) {
  std::printf("communication checked: %lld layouts\n",
              static_cast<long long>(communication.checked));
  for (const auto& [reason, count] : communication.not_checked) {
    std::printf("  not checked: %lld %s\n", static_cast<long long>(count), reason.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Drawn settings without effect would warn.
  setenv("TESSERA_LOG_LEVEL", "error", /*overwrite=*/0);
  // Otherwise a process's first products may have other last bits on hosts with many cores (18 of
  // 600 runs of one case on 32 cores; 0 of 600 with this).
  setenv("MKL_CBWR", "COMPATIBLE", /*overwrite=*/0);
  setenv("TESSERA_GEMM_TUNING", "0", /*overwrite=*/0);  // another algorithm has other last bits
  try {
    const Command command = parse(argc, argv);
    const auto make = [](const ParallelConfig& config, const DeviceMesh& mesh) {
      return make_strategy(config, mesh);
    };
    const FuzzSummary summary = fuzz_layouts(make, command.options);
    const bool covered = !command.options.line.empty() || report_rare(summary, command.least);
    std::fputs(to_text(summary).c_str(), stdout);
    report(*command.communication);
    return summary.good() && covered ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz_layouts: %s\n", error.what());
    return 2;
  }
}
