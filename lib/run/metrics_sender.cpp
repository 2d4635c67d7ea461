// SPDX-License-Identifier: MIT
#include "lib/run/metrics_sender.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "lib/settings/lists.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

constexpr auto kForPython = std::chrono::seconds(30), kForTheRest = std::chrono::seconds(60);
constexpr auto kBetween = std::chrono::milliseconds(20);

// TESSERA_PYTHON, else python3 on PATH; "" if missing.
std::string find_python() {
  if (const char* given = std::getenv("TESSERA_PYTHON")) return given;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path python = fs::path(folder) / "python3";
    if (access(python.c_str(), X_OK) == 0) return python;
  }
  return "";
}

// The exit status; empty if it still runs after `most`.
std::optional<int> wait_for(ChildProcess& process, std::chrono::steady_clock::duration most) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (!process.status() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kBetween);
  }
  return process.status();
}

std::string last_line(const std::string& path) {
  std::ifstream in(path);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

void warn(const std::string& service, const std::string& what, const std::string& directory) {
  log(LogLevel::kWarning, "--report_to ", service, ": ", what,
      "; metrics.jsonl has everything, and scripts/send_metrics.py --to ", service, " ", directory,
      " sends it later");
}

}  // namespace

MetricsSenders::MetricsSenders(const OutputOptions& options) : output_dir_(options.output_dir) {
  for (const std::string& service : items_of(options.report_to)) {
    if (!is_tracker(service)) continue;
    try {
      const std::string python = find_python();
      auto environment = environment_without_launcher();
      environment.emplace("WANDB_DIR", output_dir_);
      const std::string find =
          concat("import importlib.util, sys; sys.exit(importlib.util.find_spec('", service,
                 "') is None)");
      bool has_package = false;
      if (!python.empty()) {
        ChildProcess asked({python, "-c", find}, environment, "/dev/null");
        has_package = wait_for(asked, kForPython) == 0;
      }
      if (!has_package) {
        warn(service,
             python.empty()
                 ? "there is no python3"
                 : concat(python, " has no package ", service, " (pip install ", service, ")"),
             output_dir_);
        continue;
      }
      const std::string log_file = concat(output_dir_, "/", service, ".log");
      senders_.push_back({service, log_file,
                          std::make_unique<ChildProcess>(
                              std::vector<std::string>{python, "-c", kSendMetrics, "--to", service,
                                                       "--follow", output_dir_},
                              environment, log_file, SIGTERM)});
    } catch (const std::exception& error) {
      warn(service, error.what(), output_dir_);
    }
  }
}

void MetricsSenders::leave() {
  for (Sender& sender : senders_) sender.process->leave();
  senders_.clear();
}

MetricsSenders::~MetricsSenders() {
  for (Sender& sender : senders_) {
    const std::optional<int> status = wait_for(*sender.process, kForTheRest);
    if (status == 0) {
      log(LogLevel::kInfo, "metrics were sent to ", sender.service, "; ", sender.log,
          " says where they are");
    } else {
      const std::string said = last_line(sender.log);
      warn(sender.service,
           !status
               ? "the package has not ended within a minute, and is stopped"
               : concat("the package ended with status ", *status, said.empty() ? "" : ": " + said),
           output_dir_);
    }
  }
}

}  // namespace tessera::programs
