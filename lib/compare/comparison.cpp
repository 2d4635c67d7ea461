// SPDX-License-Identifier: MIT
#include "lib/compare/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include "lib/checkpoint/directory_lock.h"
#include "lib/compare/comparison_table.h"
#include "lib/compare/peer.h"
#include "lib/core/nearest.h"
#include "lib/core/number_text.h"
#include "lib/core/printable.h"
#include "lib/core/terminal.h"
#include "lib/report/report.h"
#include "lib/run/output.h"
#include "lib/settings/require.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_of(const std::vector<ComparisonRow>& rows) {
  std::vector<std::string> names;
  for (const ComparisonRow& row : rows) names.push_back(row.name);
  return names;
}

// All files except the lock.
std::vector<fs::path> files_in(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename() != DirectoryLock::kFile) files.push_back(entry.path());
  }
  return files;
}

std::string seconds_text(double seconds) { return printed("%.1f s", seconds); }

// Maximum over stages by category; traffic is the first stage's.
StateMemory formula_of(const ComparisonRow& row) {
  PlannedLayout layout = planned_layout(*row.prepared, row.options, static_cast<int>(row.ranks));
  const RunResult& run = row.runs.front();
  layout.on_gpu = !run.text("device").starts_with("cpu");
  const double tokens = run.number("tokens_per_step").value_or(0) /
                        static_cast<double>(layout.mesh.data * layout.accumulation);
  const auto rows = static_cast<double>(row.options.training.per_device_train_batch_size);
  const auto length = std::max<int64_t>(1, std::llround(tokens / rows));
  const std::vector<MemoryPlan> stages =
      plan_or_warn(layout, batch_shape(*row.prepared, row.options, length), card_named("cpu"));
  if (stages.empty()) return {};
  StateMemory largest = stages.front().state;
  for (const MemoryPlan& stage : stages) {
    for (double StateMemory::*bytes : {&StateMemory::parameter_bytes, &StateMemory::gradient_bytes,
                                       &StateMemory::optimizer_bytes, &StateMemory::buffer_bytes,
                                       &StateMemory::host_bytes, &StateMemory::saved_bytes}) {
      largest.*bytes = std::max(largest.*bytes, stage.state.*bytes);
    }
  }
  return largest;
}

}  // namespace

Comparison::Comparison(const CompareOptions& options, RowSource source, std::string defect)
    : options_(options), source_(std::move(source)), defect_(std::move(defect)) {
  check_options();
  rows_ = make_rows(source_);
  const std::vector<std::string> names = names_of(rows_);
  const auto known = [&](const std::string& name) { return std::ranges::count(names, name) > 0; };
  require(defect_.empty() || known(defect_), "TESSERA_COMPARE_DEFECT: no row is called ", defect_);
  require(options_.baseline.empty() || known(options_.baseline), "--baseline ", options_.baseline,
          ": no row is called so", nearest_hint(options_.baseline, names));
  prepare_rows();
  prepare_launcher();
}

void Comparison::check_options() const {
  require(!options_.output_dir.empty(), "give --output_dir DIR");
  require(options_.tolerance >= 0, "--tolerance is ", options_.tolerance, "; it must be positive");
  require(options_.repeat >= 1 && options_.repeat <= 1000, "--repeat is ", options_.repeat,
          "; it must be 1 to 1000");
  require(options_.largest_batch >= 0, "--largest_batch is ", options_.largest_batch,
          "; it must not be negative");
  require(options_.global_batch_size == 0 || !source_.weak_scaling,
          "--scaling weak keeps the batch of a rank, --global_batch_size that of all; give one");
  check_output_directory();
}

void Comparison::check_output_directory() const {
  const fs::path directory = options_.output_dir;
  if (!fs::exists(directory)) return;
  require(fs::is_directory(directory), "--output_dir ", options_.output_dir, " is a file");
  require(files_in(directory).empty() || fs::exists(directory / "done.jsonl"), "--output_dir ",
          options_.output_dir, " is not empty and holds no comparison to ",
          options_.overwrite_output_dir ? "overwrite" : "go on with",
          "; choose another directory, or empty it");
}

// Rows of the same work share the inputs read for it.
void Comparison::prepare_rows() {
  std::map<Work, std::shared_ptr<const Prepared>> prepared;
  for (ComparisonRow& row : rows_) {
    Work key = row.work;
    key.erase("global_batch_size");
    std::shared_ptr<const Prepared>& shared = prepared[key];
    if (!shared) shared = std::make_shared<Prepared>(prepare(row.options, source_.program));
    row.prepared = shared;
  }
}

// Every rank of every row gets equally many cores, so that rows are comparable.
void Comparison::prepare_launcher() {
  int64_t most_ranks = 1;
  for (const auto& row : rows_) most_ranks = std::max(most_ranks, row.ranks);
  environment_["OMPI_MCA_mpi_yield_when_idle"] = "1";
  const char* threads = std::getenv("OMP_NUM_THREADS");
  const int64_t cores = std::thread::hardware_concurrency();
  environment_["OMP_NUM_THREADS"] =
      threads != nullptr ? threads : std::to_string(std::max<int64_t>(1, cores / most_ranks));
  launchers_ = launchers_here();
  std::vector<RowToLaunch> rows;
  for (const ComparisonRow& row : rows_) {
    const std::string& backend = row.options.run.backend;
    rows.push_back({.name = row.name,
                    .alone = row.ranks == 1 || !row.peer.empty(),
                    .on_gpus = backend == "auto" || backend == "nccl" || !row.peer.empty()});
  }
  launcher_ = choose_launcher(options_.launcher, launchers_, rows);
}

void Comparison::say(const std::string& line) {
  bar_.wipe();
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

ChildResult Comparison::run_child(const ComparisonRow& row, const std::string& name,
                                  std::vector<std::string> flags, const std::string& result) {
  Children::Request request{.name = name};
  request.program = program_folder() + "/tessera-finetune-" + options_.task;
  const std::string ranks = std::to_string(row.ranks);
  request.keep_launcher = launcher_ == "srun";
  request.torchrun = row.ranks > 1 && launcher_ == "torchrun";
  if (row.ranks > 1 || launcher_ == "srun") {
    request.command = launch_command(launcher_, launchers_, ranks);
  }
  request.command.push_back(request.program);
  if (row.ranks > 1 && launcher_ == "threads") set_flag(flags, "ranks", ranks);
  if (!defect_.empty() && row.name == defect_) {
    set_flag(flags, "learning_rate", concat(row.options.training.learning_rate * 1.01));
  }
  request.command.insert(request.command.end(), flags.begin(), flags.end());
  request.output = {"--output_dir", options_.output_dir + "/" + name, "--overwrite_output_dir",
                    "true"};
  request.inputs = row.prepared->dataset_sha256 + inputs_.of(flags, source_.program);
  if (!result.empty()) request.result = options_.output_dir + "/" + name + "/" + result;
  return watch(std::move(request));
}

ChildResult Comparison::watch(Children::Request request) {
  request.environment = environment_;
  const auto all = static_cast<double>(options_.repeat * static_cast<int64_t>(rows_.size()));
  bar_.retitle(request.name);
  return children_->run(request, [&] { bar_(static_cast<double>(done_) / all); });
}

// With random weights a run of ours first writes those that our rows draw.
ChildResult Comparison::run_peer(const ComparisonRow& row, const std::string& name) {
  const std::string python = options_.python.find('/') == std::string::npos
                                 ? find_in_path(options_.python)
                                 : options_.python;
  if (python.empty()) {
    return {.exit_code = kPeerUnavailable, .message = options_.python + " was not found"};
  }
  std::string model = row.options.model.directory;
  if (model.empty()) {
    const std::string file = fs::path(row.options.model.config).filename().string();
    const std::string drawn = concat("weights-", file, "-", row.options.training.seed);
    const ComparisonRow alone{.prepared = row.prepared};
    const ChildResult child = run_child(alone, drawn, drawn_weights_flags(row.options), "final");
    if (child.exit_code != 0) return child;
    model = options_.output_dir + "/" + drawn + "/final";
  }
  Children::Request request = peer_request(row, name, python, model, options_.output_dir);
  request.inputs += inputs_.of(row.flags, source_.program);
  request.result = options_.output_dir + "/" + name + "/" + kMetrics;
  ChildResult child = watch(std::move(request));
  // Python exits with 1 for any failure.
  if (child.message.starts_with("error: out of memory")) {
    child.exit_code = exit_code(ErrorCode::kResourceExhausted);
  } else if (child.message.starts_with("error: Python package")) {
    child.exit_code = kPeerUnavailable;
  }
  return child;
}

void Comparison::take(ComparisonRow& row, const ChildResult& child, const std::string& name) {
  row.wall_s += child.wall_s;
  row.exit_code = child.exit_code;
  if (child.exit_code == 0) {
    row.runs.push_back(read_run(options_.output_dir + "/" + name));
  } else {
    row.outcome = is_out_of_memory(child) ? RunOutcome::kOutOfMemory : RunOutcome::kFailed;
    if (!row.peer.empty() && child.exit_code == kPeerUnavailable) {
      row.outcome = RunOutcome::kUnavailable;
    }
    row.message = child.message;
  }
}

void Comparison::run_row(ComparisonRow& row, int64_t repeat) {
  if (repeat == 1 && options_.largest_batch > 0) {
    row.peer.empty() ? find_largest_batch(row) : settle(row, options_.global_batch_size);
  }
  if (row.outcome == RunOutcome::kFinished) {
    const std::string name = repeat == 1 ? row.name : concat(row.name, ".", repeat);
    ChildResult child = row.peer.empty() ? run_child(row, name, row.flags) : run_peer(row, name);
    while (repeat == 1 && is_out_of_memory(child) && take_smaller_batch(row)) {
      row.wall_s += child.wall_s;
      child = run_child(row, name, row.flags);
    }
    taken_over_ += child.taken_over ? 1 : 0;
    take(row, child, name);
    if (row.finished() && repeat == 1 && row.peer.empty()) row.formula = formula_of(row);
    if (row.finished()) judge(row);
    const std::string ran = child.taken_over ? "taken over" : seconds_text(child.wall_s);
    say(concat(name, ": ", ran, ", ", row.verdict()));
    if (!row.message.empty()) say("  " + row.message);
  } else if (repeat == 1) {
    say(concat(row.name, ": ", row.verdict(), "\n  ", row.message));
  }
  ++done_;
}

// Compares every run of every row with the first run of the first row with the same work.
void Comparison::judge(ComparisonRow& row) {
  const auto first = std::ranges::find_if(rows_, [&](const auto& other) {
    return other.peer.empty() && other.finished() && other.work == row.work;
  });
  if (first == rows_.end()) return;  // a peer before any row of ours
  const RunResult &reference = first->runs.front(), &run = row.runs.back();
  if (&reference == &run) return;
  row.tolerance = options_.tolerance > 0
                      ? options_.tolerance
                      : default_tolerance(name_of(row.options.parallel.precision.parameter));
  const Parity parity = compare_runs(run, reference, row.tolerance);
  row.compared_with = first->name;
  if (!row.parity || row.parity->pass) row.parity = parity;
}

const ComparisonRow& Comparison::baseline() const {
  const auto found =
      std::ranges::find_if(rows_, [&](const auto& row) { return row.name == options_.baseline; });
  return found == rows_.end() ? rows_.front() : *found;
}

int Comparison::run() {
  DirectoryLock lock(options_.output_dir);
  check_output_directory();  // another comparison may have written there since
  lock.keep();
  std::error_code error;
  if (options_.overwrite_output_dir) {
    for (const fs::path& path : files_in(options_.output_dir)) {
      if (!error) fs::remove_all(path, error);
    }
  }
  check(!error, ErrorCode::kDataLoss, "--output_dir ", options_.output_dir, ": ", error.message());
  children_ = std::make_unique<Children>(options_.output_dir);
  for (int64_t repeat = 1; repeat <= options_.repeat; ++repeat) {
    for (ComparisonRow& row : rows_) {
      run_row(row, repeat);
      write_files();
    }
  }
  bar_.wipe();
  if (taken_over_ > 0) say(concat(taken_over_, " runs are taken over from an earlier call"));
  return conclude();
}

ComparisonView Comparison::view() const {
  return {.rows = rows_,
          .baseline = baseline(),
          .repeat = options_.repeat,
          .scaling = options_.scaling,
          .tolerance = options_.tolerance};
}

// Called after every row, so that an interrupted comparison keeps its results.
void Comparison::write_files() {
  for (ComparisonRow& row : rows_) row.mark = difference(row.work, baseline().work);
  write_text_file(options_.output_dir + "/comparison.csv", comparison_csv(view()));
  write_text_file(options_.output_dir + "/compare.json", comparison_json(view()));
}

// Covers the rows so far; failing to make the page is not an error.
void Comparison::write_report() const {
  const std::string page = options_.output_dir + "/report.html";
  std::ostringstream said, problem;
  said.imbue(std::locale::classic());
  const int code = report::run_report({options_.output_dir, "--output", page}, said, problem);
  if (code == 0) {
    std::printf("report: %s\n", page.c_str());
  } else {
    log(LogLevel::kWarning, "report.html is not written: ", problem.str());
  }
}

int Comparison::conclude() {
  const ComparisonRow& base = baseline();
  const size_t width = columns_of_terminal(stdout);
  std::printf("\n%s on %s\n%s\n", printable(base.prepared->model.name).c_str(),
              printable(base.prepared->train_path).c_str(),
              printable(comparison_text(view(), width)).c_str());
  const std::string files = concat("files: ", options_.output_dir,
                                   "/compare.json, comparison.csv, <row>/metrics.jsonl, "
                                   "logs/<row>.log\n");
  std::fputs(wrapped_lines(files, 2, width).c_str(), stdout);
  write_report();
  int code = 0;
  for (const ComparisonRow& row : rows_) {
    if (!row.failed()) continue;
    if (row.outcome == RunOutcome::kFailed) return row.exit_code;
    std::printf("%s differs from %s; worst parameter: %s\n", row.name.c_str(),
                row.compared_with.c_str(), row.parity->worst_parameter.c_str());
    code = exit_code(ErrorCode::kNumerics);
  }
  return code;
}

}  // namespace tessera::programs
