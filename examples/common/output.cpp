#include "examples/common/output.h"

#include <torch/headeronly/version.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tessera/core/error.h"
#include "tessera/metrics/resource_sampler.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRunFiles[] = {"metrics.jsonl", "results.csv", "resources.csv",
                                     "config.json",   "final",       "tensorboard"};

// mpirun gives its children a pseudo-terminal even when its own output is a pipe; then its own
// counts.
bool writes_to_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return true;
  std::error_code error;
  const std::string target =
      fs::read_symlink("/proc/" + std::to_string(getppid()) + "/fd/1", error).string();
  return target.starts_with("/dev/pts/") || target.starts_with("/dev/tty");
}

}  // namespace

void check_output_directory(const TrainOptions& options) {
  const fs::path directory = options.output_dir;
  if (!fs::exists(directory)) return;
  check(fs::is_directory(directory), ErrorCode::kInvalidArgument, "--output_dir ",
        options.output_dir, " is a file; name a directory");
  if (options.overwrite_output_dir) return;
  for (const char* name : kRunFiles) {
    check(!fs::exists(directory / name), ErrorCode::kInvalidArgument, "--output_dir ",
          options.output_dir, " already holds a run (", name,
          "); choose another directory, or add --overwrite_output_dir");
  }
}

void prepare_output_directory(const TrainOptions& options) {
  std::error_code error;
  const fs::path directory = options.output_dir;
  for (const char* name : kRunFiles) {
    if (options.overwrite_output_dir && !error) fs::remove_all(directory / name, error);
  }
  if (!error) fs::create_directories(directory, error);
  check(!error, ErrorCode::kDataLoss, "--output_dir ", options.output_dir, ": ", error.message());
}

std::vector<std::unique_ptr<metrics::Sink>> make_sinks(const TrainOptions& options) {
  std::vector<std::unique_ptr<metrics::Sink>> sinks;
  const std::string folder = options.output_dir + "/";
  sinks.push_back(metrics::make_console_sink(stdout, writes_to_terminal()));
  if (options.report_to.find("jsonl") != std::string::npos) {
    sinks.push_back(metrics::make_jsonl_sink(folder + "metrics.jsonl"));
  }
  if (options.report_to.find("csv") != std::string::npos) {
    sinks.push_back(metrics::make_results_sink(folder + "results.csv"));
    sinks.push_back(metrics::make_resources_sink(folder + "resources.csv"));
  }
  if (options.report_to.find("tensorboard") != std::string::npos) {
    sinks.push_back(metrics::make_tensorboard_sink(folder + "tensorboard"));
  }
  return sinks;
}

void write_text_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::trunc);
  out << text << std::flush;
  check(out.good(), ErrorCode::kDataLoss, path, ": cannot be written; check the free space");
}

void fill_versions(metrics::RunStartRecord& record) {
  record.driver_version = metrics::GpuMonitor().driver_version();
  record.cuda_version = TESSERA_CUDA_VERSION;
  record.torch_version = TORCH_VERSION;
  record.tessera_version = TESSERA_VERSION;
  record.git_sha = TESSERA_GIT_SHA;
}

}  // namespace tessera::programs
