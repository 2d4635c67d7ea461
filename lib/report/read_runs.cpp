// SPDX-License-Identifier: MIT
#include "lib/report/read_runs.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "lib/core/file.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::report {
namespace {

namespace fs = std::filesystem;
constexpr int kMostDepth = 6;
// Folders in an output directory that are not runs.
const std::set<std::string> kNoRuns{"final", "tensorboard", "logs"};

std::string text_of(const Json& value) {
  return value.is_string() ? value.as_string() : value.dump();
}

std::map<std::string, double> numbers_of(const Json& event) {
  std::map<std::string, double> numbers;
  for (const auto& [key, value] : event.members()) {
    if (value.is_number()) numbers[key] = value.as_double();
  }
  return numbers;
}

class Reader {
 public:
  explicit Reader(Run& run) : run_(run) {}

  void event(const Json& event) {
    const std::string name = event.at("event").as_string();
    if (name == "run_start") before_s_ = elapsed_s_;
    std::map<std::string, double> numbers = numbers_of(event);
    numbers["elapsed_s"] += before_s_;
    elapsed_s_ = numbers["elapsed_s"];
    if (name == "run_start") {
      start(event, numbers);
    } else if (name == "step") {
      append(run_.steps, numbers, last_step_);
    } else if (name == "eval") {
      append(run_.evaluations, numbers, last_evaluation_);
      keep(numbers);
    } else if (name == "resource") {
      run_.resources.append(numbers);
    } else if (name == "anomaly") {
      run_.anomalies.push_back(
          concat(event.get("kind", ""), ": ", event.get("detail", std::string())));
      if (event.get("kind", "") == std::string("oom")) run_.outcome = RunOutcome::kOutOfMemory;
    } else if (name == "run_end") {
      keep(numbers);
      end(event);
    } else if (name == "checkpoint") {
      if (!event.get("restored_from", "").empty()) ++run_.times_resumed;
    }
  }

  void finish() {
    if (ended_) return;
    run_.outcome = RunOutcome::kUnfinished;
    run_.problem = "it has written no end: it was killed, or still runs";
  }

 private:
  // Steps after a resume replace the earlier ones of the same number.
  static void append(Series& series, std::map<std::string, double>& numbers, double& last) {
    const double step = numbers["step"];
    if (step <= last) series.cut("step", step);
    series.append(numbers);
    last = step;
  }

  void keep(const std::map<std::string, double>& numbers) {
    for (const auto& [key, value] : numbers) run_.numbers[key] = value;
  }

  void start(const Json& event, std::map<std::string, double>& numbers) {
    ended_ = false;
    run_.outcome = RunOutcome::kFinished;
    keep(numbers);
    for (const auto& [key, value] : event.members()) {
      if (key == "argv") {
        std::string line;
        for (const Json& word : value.items()) {
          if (!line.empty()) line += ' ';
          line += text_of(word);
        }
        run_.facts[key] = line;
      } else if (!value.is_object() && !value.is_array() && !value.is_null()) {
        run_.facts[key] = text_of(value);
      }
    }
    if (!event.contains("config")) return;  // a peer's run
    for (const auto& [flag, setting] : event.at("config").members()) {
      run_.settings[flag] = setting.is_object() ? text_of(setting.at("value")) : text_of(setting);
    }
  }

  void end(const Json& event) {
    ended_ = true;
    run_.facts["param_hash_final"] = event.get("param_hash_final", "");
    const int64_t code = event.get("exit_code", 0);
    if (code == 0) return;
    if (run_.outcome != RunOutcome::kOutOfMemory) {
      run_.outcome = code == exit_code(ErrorCode::kResourceExhausted) ? RunOutcome::kOutOfMemory
                                                                      : RunOutcome::kFailed;
    }
    run_.problem = concat("exit code ", code);
    if (!run_.anomalies.empty()) run_.problem += ", " + run_.anomalies.back();
  }

  Run& run_;
  bool ended_ = false;
  double before_s_ = 0, elapsed_s_ = 0;  // before_s_: seconds of the parts before a checkpoint
  double last_step_ = 0, last_evaluation_ = -1;
};

bool has_run(const fs::path& folder) { return fs::exists(folder / "metrics.jsonl"); }

// Collects the runs below a folder, comparisons included.
void find(const fs::path& folder, int depth, std::vector<Run>& runs) {
  if (has_run(folder)) {
    runs.push_back(read_run(folder.string()));
    return;
  }
  const size_t before = runs.size();
  std::vector<fs::path> inner;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool of_a_run = kNoRuns.contains(name) || name.starts_with("checkpoint-");
    if (entry.is_directory() && !of_a_run && !name.starts_with(".")) inner.push_back(entry.path());
  }
  std::ranges::sort(inner);
  if (depth < kMostDepth) {
    for (const fs::path& one : inner) find(one, depth + 1, runs);
  }
  if (!fs::exists(folder / "compare.json") && !fs::exists(folder / "comparison.csv")) return;
  std::vector<Run> of_comparison(std::make_move_iterator(runs.begin() + before),
                                 std::make_move_iterator(runs.end()));
  runs.resize(before);
  read_comparison(folder.string(), of_comparison);
  std::ranges::move(of_comparison, std::back_inserter(runs));
}

std::string with_parents(const fs::path& path, int parents) {
  std::string name = path.filename();
  fs::path at = path.parent_path();
  for (int i = 0; i < parents && at.has_filename(); ++i, at = at.parent_path()) {
    name = at.filename().string() + "/" + name;
  }
  return name;
}

// Names: the shortest path ends that distinguish the runs; benchmarks have names already.
void name_runs(std::vector<Run>& runs) {
  for (int parents = 0; parents <= kMostDepth; ++parents) {
    std::map<std::string, int> uses;
    for (const Run& run : runs)
      ++uses[run.name.empty() ? with_parents(run.path, parents) : run.name];
    const bool unique = std::ranges::all_of(uses, [](const auto& use) { return use.second == 1; });
    if (!unique && parents < kMostDepth) continue;
    for (Run& run : runs) {
      if (run.name.empty()) run.name = with_parents(run.path, parents);
    }
    break;
  }
  std::map<std::string, int> seen;
  for (Run& run : runs) {
    if (const int times = ++seen[run.name]; times > 1) run.name += concat(" (", times, ")");
  }
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with("/")) path.pop_back();
  return path;
}

}  // namespace

Run read_run(const std::string& directory) {
  Run run{.path = directory};
  const std::string path = directory + "/metrics.jsonl";
  Reader reader(run);
  std::string rest;
  int64_t number = 0;
  for_each_piece(path, [&](std::string_view piece) {
    rest += piece;
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const std::string_view line = std::string_view(rest).substr(begin, end - begin);
      reader.event(Json::parse(line, {}, concat(path, ":", ++number)));
    }
    rest.erase(0, begin);
  });
  check(number > 0, ErrorCode::kDataLoss, path, ": holds no event");
  reader.finish();
  return run;
}

std::vector<Run> read_runs(const std::vector<std::string>& paths) {
  std::vector<Run> runs;
  for (const std::string& given : paths) {
    const std::string path = without_slash(fs::absolute(given).lexically_normal().string());
    check(fs::exists(path), ErrorCode::kDataLoss, given, ": does not exist");
    const size_t before = runs.size();
    if (fs::is_directory(path)) {
      find(path, 0, runs);
    } else if (fs::path(path).filename() == "metrics.jsonl") {
      runs.push_back(read_run(fs::path(path).parent_path().string()));
    } else {
      std::ranges::move(read_benchmark(path), std::back_inserter(runs));
    }
    check(runs.size() > before, ErrorCode::kDataLoss, given,
          ": holds no run; expected metrics.jsonl of a run in it or in its folders, comparison.csv "
          "of tessera-compare, or the output of bench_strategies");
  }
  std::set<std::string> seen;
  std::erase_if(runs, [&](const Run& run) { return !seen.insert(run.path + run.name).second; });
  name_runs(runs);
  return runs;
}

}  // namespace tessera::report
