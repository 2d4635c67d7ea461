// SPDX-License-Identifier: MIT
#include "lib/run/output.h"

#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "lib/core/terminal.h"
#include "lib/metrics/resource_sampler.h"
#include "lib/run/run_checkpoints.h"
#include "lib/settings/table.h"
#include "tessera/core/error.h"
#include "tessera/core/version.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRunFiles[] = {"metrics.jsonl",
                                     "results.csv",
                                     "resources.csv",
                                     "config.json",
                                     "final",
                                     "tensorboard",
                                     "scores.json",
                                     "predictions.json",
                                     "nbest_predictions.json",
                                     "na_prob.json",
                                     "predictions.csv",
                                     "wandb.log",
                                     "mlflow.log"};

bool is_of_checkpoints(const std::string& name) {
  return name.starts_with("checkpoint-") || name == "latest";
}

// Files in the directory that belong to a run.
std::vector<fs::path> run_files(const fs::path& directory, std::error_code& error) {
  std::vector<fs::path> found;
  for (const char* name : kRunFiles) {
    if (fs::exists(directory / name)) found.push_back(directory / name);
  }
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (is_of_checkpoints(entry.path().filename())) found.push_back(entry.path());
  }
  return found;
}

}  // namespace

// True for a terminal that people watch. mpirun gives its children a pseudo-terminal even if its
// own output is a pipe, so its output decides.
bool writes_to_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return true;
  std::error_code error;
  const std::string target =
      fs::read_symlink("/proc/" + std::to_string(getppid()) + "/fd/1", error).string();
  return target.starts_with("/dev/pts/") || target.starts_with("/dev/tty");
}

void check_output_directory(const TrainOptions& options) {
  const fs::path directory = options.output.output_dir;
  if (!fs::exists(directory)) return;
  check(fs::is_directory(directory), ErrorCode::kInvalidArgument, "--output_dir ",
        options.output.output_dir, " is a file; name a directory");
  std::error_code error;
  const std::vector<fs::path> found = run_files(directory, error);
  if (continues_in_place(options)) {
    const bool goes_on = std::ranges::any_of(
        found, [](const fs::path& path) { return is_of_checkpoints(path.filename()); });
    check(goes_on || !fs::exists(directory / "final"), ErrorCode::kInvalidArgument, "--output_dir ",
          options.output.output_dir,
          " holds a run that ended (final) and has no checkpoint to go on from");
    return;
  }
  if (options.output.overwrite_output_dir) return;
  check(found.empty(), ErrorCode::kInvalidArgument, "--output_dir ", options.output.output_dir,
        " already holds a run (", found.empty() ? fs::path() : found.front().filename(),
        "); choose another directory, go on with --resume_from_checkpoint auto, or add "
        "--overwrite_output_dir");
}

std::unique_ptr<DirectoryLock> lock_output_directory(const TrainOptions& options) {
  check_output_directory(options);
  auto lock = std::make_unique<DirectoryLock>(options.output.output_dir);
  check_output_directory(options);  // another job may have written there since
  return lock;
}

void prepare_output_directory(const TrainOptions& options, DirectoryLock& lock) {
  lock.keep();
  std::error_code error;
  const fs::path directory = options.output.output_dir;
  if (options.output.overwrite_output_dir && !continues_in_place(options)) {
    for (const fs::path& path : run_files(directory, error)) {
      if (!error) fs::remove_all(path, error);
    }
  }
  check(!error, ErrorCode::kDataLoss, "--output_dir ", options.output.output_dir, ": ",
        error.message());
}

std::vector<std::unique_ptr<metrics::Sink>> make_sinks(
    const TrainOptions& options, int64_t logging_steps,
    const std::vector<std::pair<std::string, std::string>>& found) {
  std::vector<std::unique_ptr<metrics::Sink>> sinks;
  const std::string folder = options.output.output_dir + "/";
  if (options.output.report_to.find("jsonl") != std::string::npos) {
    sinks.push_back(metrics::make_jsonl_sink(folder + "metrics.jsonl"));
  }
  if (options.output.report_to.find("csv") != std::string::npos) {
    sinks.push_back(metrics::make_results_sink(folder + "results.csv", settings::recorded_names()));
    sinks.push_back(metrics::make_resources_sink(folder + "resources.csv"));
  }
  if (options.output.report_to.find("tensorboard") != std::string::npos) {
    sinks.push_back(metrics::make_tensorboard_sink(folder + "tensorboard"));
  }
  const bool terminal = writes_to_terminal();
  auto console = metrics::make_console_sink(stdout, {.terminal = terminal,
                                                     .colours = terminal && terminal_has_colours(),
                                                     .every = logging_steps,
                                                     .found = found});
  // Last, so that its messages are in the files already.
  sinks.push_back(std::move(console));
  return sinks;
}

void write_text_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream out(path, std::ios::trunc);
  out << text;
  out.close();
  const int reason = errno;
  check(out.good(), ErrorCode::kDataLoss, path, ": cannot be written: ", std::strerror(reason));
}

void fill_versions(metrics::RunStartRecord& record) {
  record.driver_version = metrics::GpuMonitor().driver_version();
  record.cuda_version = TESSERA_CUDA_VERSION;
  record.torch_version = TORCH_VERSION;
  record.tessera_version = build_info().version;
  record.git_sha = TESSERA_GIT_SHA;
}

}  // namespace tessera::programs
