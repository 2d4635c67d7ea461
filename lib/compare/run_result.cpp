// SPDX-License-Identifier: MIT
#include "lib/compare/run_result.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "lib/core/integer_of.h"
#include "lib/metrics/statistics.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

void take_scalars(const Json& event, RunResult& run) {
  for (const auto& [key, value] : event.members()) {
    if (value.is_number()) run.numbers[key] = value.as_double();
    if (value.is_string()) run.texts[key] = value.as_string();
  }
}

double median(const std::vector<double>& values) { return metrics::describe(values).median; }

}  // namespace

std::string RunResult::text(const std::string& key) const {
  const auto found = texts.find(key);
  return found == texts.end() ? "" : found->second;
}

std::optional<double> RunResult::number(const std::string& key) const {
  const auto found = numbers.find(key);
  return found == numbers.end() ? std::nullopt : std::optional(found->second);
}

int64_t RunResult::integer(const std::string& key) const {
  return integer_of(number(key).value_or(0));
}

RunResult read_run(const std::string& directory) {
  const std::string path = directory + "/metrics.jsonl";
  std::ifstream in(path);
  check(in.good(), ErrorCode::kDataLoss, path, ": cannot be read; did the run write its metrics?");
  RunResult run;
  run.directory = directory;
  std::vector<double> comm_bytes, tokens;
  bool ended = false;
  for (std::string line; std::getline(in, line);) {
    const Json event = Json::parse(line, {}, path);
    const std::string name = event.at("event").as_string();
    if (name == "run_start" || name == "eval" || name == "run_end") take_scalars(event, run);
    ended |= name == "run_end";
    if (name != "step") continue;
    tokens.push_back(event.at("tokens").as_double());
    run.losses.push_back(event.get("loss", std::nan("")));
    run.grad_norms.push_back(event.get("grad_norm", std::nan("")));
    if (const auto bytes = event.find("comm_bytes")) comm_bytes.push_back(bytes->as_double());
  }
  check(ended, ErrorCode::kDataLoss, path, ": the run has not ended; its log says why");
  if (!comm_bytes.empty()) run.numbers["comm_bytes_per_step"] = median(comm_bytes);
  if (!tokens.empty()) run.numbers["tokens_per_step"] = median(tokens);
  return run;
}

std::optional<Spread> spread(const std::vector<RunResult>& runs, const std::string& key) {
  std::vector<double> values;
  for (const RunResult& run : runs) {
    if (const auto value = run.number(key)) values.push_back(*value);
  }
  if (values.empty()) return std::nullopt;
  const auto count = static_cast<double>(values.size());
  Spread result{.median = median(values), .min = *std::ranges::min_element(values)};
  if (count > 1) result.std = metrics::describe(values).std * std::sqrt(count / (count - 1));
  return result;
}

}  // namespace tessera::programs
