#include "examples/compare/run_result.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

std::optional<double> number(const Json& event, const char* key) {
  const auto value = event.find(key);
  return value ? std::optional(value->as_double()) : std::nullopt;
}

std::optional<int64_t> integer(const Json& event, const char* key) {
  const auto value = event.find(key);
  return value ? std::optional(value->as_int64()) : std::nullopt;
}

int64_t median(std::vector<int64_t>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void read_start(const Json& event, RunResult& run) {
  run.device = event.at("device").as_string();
  run.parameter_dtype = event.at("parameter_dtype").as_string();
  run.gradient_dtype = event.at("gradient_dtype").as_string();
  run.reduce_dtype = event.at("reduce_dtype").as_string();
  run.num_parameters = event.at("num_parameters").as_int64();
  run.accumulation = event.at("gradient_accumulation_steps").as_int64();
  run.global_batch = event.at("global_batch_size").as_int64();
  run.model = event.at("model").as_string();
  run.dataset_sha256 = event.get("dataset_sha256", "");
}

void read_end(const Json& event, RunResult& run) {
  run.train_loss_final = number(event, "train_loss_final");
  run.tokens_per_second = number(event, "tokens_per_second_median");
  run.parameter_bytes = integer(event, "parameter_bytes");
  run.gradient_bytes = integer(event, "gradient_bytes");
  run.optimizer_bytes = integer(event, "optimizer_bytes");
  run.buffer_bytes = integer(event, "buffer_bytes");
  run.host_bytes = integer(event, "host_bytes");
  run.pinned_bytes = integer(event, "pinned_bytes");
  run.gpu_peak_bytes = integer(event, "gpu_mem_allocated_peak_bytes");
  run.cpu_peak_bytes = integer(event, "cpu_rss_tree_peak_bytes");
}

}  // namespace

RunResult read_run(const std::string& directory) {
  const std::string path = directory + "/metrics.jsonl";
  std::ifstream in(path);
  check(in.good(), ErrorCode::kDataLoss, path, ": cannot be read; did the run write its metrics?");
  RunResult run;
  run.directory = directory;
  std::vector<int64_t> comm_bytes, tokens;
  bool ended = false;
  for (std::string line; std::getline(in, line);) {
    const Json event = Json::parse(line, {}, path);
    const std::string name = event.at("event").as_string();
    if (name == "run_start") read_start(event, run);
    if (name == "eval") run.eval_loss = number(event, "eval_loss");
    if (name == "step") {
      tokens.push_back(event.at("tokens").as_int64());
      run.losses.push_back(event.get("loss", std::nan("")));
      run.grad_norms.push_back(event.get("grad_norm", std::nan("")));
      if (const auto bytes = integer(event, "comm_bytes")) comm_bytes.push_back(*bytes);
    }
    if (name == "run_end") {
      read_end(event, run);
      ended = true;
    }
  }
  check(ended, ErrorCode::kDataLoss, path, ": the run has not ended; its log says why");
  if (!comm_bytes.empty()) run.comm_bytes_per_step = median(comm_bytes);
  if (!tokens.empty()) run.tokens_per_step = median(tokens);
  return run;
}

}  // namespace tessera::programs
