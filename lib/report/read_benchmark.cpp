// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "lib/core/file.h"
#include "lib/core/number_text.h"
#include "lib/report/read_runs.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::report {
namespace {

constexpr double kMebibyte = 1 << 20;

void set(Run& run, const std::string& key, double value) {
  run.numbers[key] = value;
  run.facts.emplace(key, concat(value));
}

// Facts of all benchmark rows: random token ids.
void finish(Run& run) {
  run.facts["dataset"] = "random token ids";
  if (const auto rate = run.number("tokens_per_second_and_rank")) {
    run.numbers["tokens_per_second_median"] = *rate * run.number("world_size").value_or(1);
  }
}

// "TESSERA {...}" of bench_strategies.
Run run_of_line(const Json& line) {
  Run run;
  run.facts["model"] = line.get("model", "");
  run.facts["strategy"] = line.get("mode", "");
  for (const char* key : {"parameter_dtype", "gradient_dtype"}) {
    run.facts[key] = line.get("dtype", "");
  }
  run.settings["variant"] = line.get("variant", "");
  run.settings["pipeline_schedule"] = line.get("schedule", "");
  std::istringstream mesh(line.get("mesh", "1x1x1"));
  int64_t pipeline = 1, data = 1, tensor = 1;
  char by = 0;
  mesh >> pipeline >> by >> data >> by >> tensor;
  const int64_t micro_batch = line.get("mb", 1), accumulation = line.get("accum", 1);
  set(run, "pp", pipeline);
  set(run, "dp", data);
  set(run, "tp", tensor);
  set(run, "world_size", line.get("world", 1));
  set(run, "per_device_train_batch_size", micro_batch);
  set(run, "gradient_accumulation_steps", accumulation);
  set(run, "global_batch_size", micro_batch * accumulation * data);
  set(run, "max_seq_length", line.get("seq", 0));
  set(run, "num_parameters", line.get("params", 0));
  run.numbers["step_time_median_s"] = line.get("step_ms", std::nan("")) / 1e3;
  run.numbers["tokens_per_second_and_rank"] = line.get("tok_s_gpu", std::nan(""));
  const auto mebibytes = [&](const char* key, const char* from) {
    if (const auto value = line.find(from)) run.numbers[key] = value->as_double() * kMebibyte;
  };
  mebibytes("gpu_mem_allocated_peak_bytes", "peak_alloc_mib");
  mebibytes("gpu_mem_reserved_peak_bytes", "peak_resv_mib");
  mebibytes("parameter_bytes", "parameter_mib");
  mebibytes("gradient_bytes", "gradient_mib");
  mebibytes("optimizer_bytes", "optimizer_mib");
  mebibytes("buffer_bytes", "buffer_mib");
  mebibytes("host_bytes", "host_mib");
  mebibytes("pinned_bytes", "pinned_mib");
  const std::string variant = line.get("variant", "");
  run.name = concat(run.facts["model"], "/", run.facts["strategy"], "/", line.get("mesh", "1x1x1"),
                    "/mb", micro_batch, variant.empty() ? "" : "/", variant);
  return run;
}

// "bloom-560m/zero2/mb4/ranks2/iterations:20/manual_time" and its counters.
Run run_of_entry(const Json& entry) {
  Run run;
  run.name = entry.at("name").as_string();
  std::istringstream parts(run.name);
  std::vector<std::string> words;
  for (std::string word; std::getline(parts, word, '/');) words.push_back(word);
  if (words.size() >= 4 && words[2].starts_with("mb") && words[3].starts_with("ranks")) {
    run.facts["model"] = words[0];
    run.facts["strategy"] = words[1];
    set(run, "per_device_train_batch_size", leading_number(words[2].substr(2)));
    set(run, "world_size", leading_number(words[3].substr(5)));
    run.name = concat(words[0], "/", words[1], "/", words[2], "/", words[3]);
  }
  const std::string unit = entry.get("time_unit", "ns");
  const double scale = unit == "s" ? 1 : unit == "ms" ? 1e-3 : unit == "us" ? 1e-6 : 1e-9;
  run.numbers["step_time_mean_s"] = entry.get("real_time", std::nan("")) * scale;
  if (const auto rate = entry.find("tokens/s/rank")) {
    run.numbers["tokens_per_second_and_rank"] = rate->as_double();
  }
  if (const auto peak = entry.find("peak_MiB")) {
    run.numbers["gpu_mem_allocated_peak_bytes"] = peak->as_double() * kMebibyte;
  }
  if (entry.get("error_occurred", false)) {
    run.outcome = RunOutcome::kFailed;
    run.problem = entry.get("error_message", "");
  }
  return run;
}

}  // namespace

std::vector<Run> read_benchmark(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<Run> runs;
  if (text.find_first_not_of(" \t\r\n") != std::string::npos &&
      text[text.find_first_not_of(" \t\r\n")] == '{') {
    const Json file = Json::parse(text, {}, path);
    const auto entries = file.find("benchmarks");
    check(entries.has_value(), ErrorCode::kDataLoss, path,
          ": has no \"benchmarks\"; expected Google Benchmark's JSON");
    for (const Json& entry : entries->items()) {
      if (entry.get("run_type", "iteration") == "iteration") runs.push_back(run_of_entry(entry));
    }
  } else {
    constexpr std::string_view kMark = "TESSERA {";
    std::istringstream in(text);
    int64_t number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      const size_t at = line.find(kMark);
      if (at == std::string::npos) continue;
      const std::string text_of_line = line.substr(at + kMark.size() - 1);
      const Json json = Json::parse(text_of_line, {}, concat(path, ":", number));
      if (!json.contains("profile")) runs.push_back(run_of_line(json));
    }
  }
  for (Run& run : runs) {
    run.path = path;
    finish(run);
  }
  return runs;
}

}  // namespace tessera::report
