// SPDX-License-Identifier: MIT
#include "lib/report/watch.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <thread>

#include "lib/report/read_runs.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

namespace fs = std::filesystem;

constexpr int kReload_s = 5;
constexpr auto kBetween = std::chrono::seconds(1);

fs::path folder_of(const std::string& path) {
  const fs::path given = fs::absolute(path).lexically_normal();
  return fs::is_regular_file(given) ? given.parent_path() : given;
}

// Replaces the file by renaming, so that a browser never reads a part.
void replace_file(const fs::path& path, const std::string& text) {
  const fs::path next = path.string() + ".tessera.tmp";
  std::ofstream file(next, std::ios::trunc | std::ios::binary);
  file << text << std::flush;
  check(file.good(), ErrorCode::kDataLoss, next.string(), ": cannot be written");
  file.close();
  fs::rename(next, path);
}

// Total amount written by the runs.
size_t written(const std::vector<Run>& runs) {
  size_t count = 0;
  for (const Run& run : runs) {
    count += run.steps.size() + run.evaluations.size() + run.resources.size() +
             run.anomalies.size() + (run.outcome == RunOutcome::kUnfinished ? 0 : 1) + 1;
  }
  return count;
}

}  // namespace

int watch(const std::vector<std::string>& paths, const std::string& directory, std::ostream& out,
          const std::function<std::string(std::vector<Run>, int reload_s)>& page) {
  const fs::path folder = directory.empty() ? folder_of(paths.front()) : fs::path(directory);
  const fs::path file = fs::absolute(folder) / "report.html";
  size_t seen = 0;
  for (bool waits = false;; std::this_thread::sleep_for(kBetween)) {
    std::vector<Run> runs;
    try {
      runs = read_runs(paths);
    } catch (const Error& error) {
      if (seen > 0) throw;
      if (!waits) out << "waiting for a run: " << error.what() << std::endl;
      waits = true;
      continue;
    }
    const bool ended = std::ranges::none_of(
        runs, [](const Run& run) { return run.outcome == RunOutcome::kUnfinished; });
    const size_t now = written(runs);
    if (now == seen) continue;
    fs::create_directories(folder);
    replace_file(file, page(std::move(runs), ended ? 0 : kReload_s));
    if (seen == 0) {
      out << "open file://" << file.string()
          << (ended ? "" : "; it loads itself again, Ctrl-C ends") << std::endl;
    }
    seen = now;
    if (ended) return 0;
  }
}

}  // namespace tessera::report
