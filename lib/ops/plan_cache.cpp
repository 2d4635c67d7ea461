#include "lib/ops/plan_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "tessera/core/error.h"
#include "tessera/core/file.h"
#include "tessera/core/hash.h"
#include "tessera/core/log.h"

namespace tessera::ops {
namespace {

constexpr const char* kTitle = "tessera plans 1";

std::string checksum(const std::string& text) { return hex64(xxh3_64(text.data(), text.size())); }

}  // namespace

PlanCache::PlanCache(std::string path, std::string owner)
    : path_(std::move(path)), owner_(std::move(owner)) {
  if (path_.empty() || !std::filesystem::exists(path_)) return;
  try {
    plans_ = read();
  } catch (const Error& error) {
    if (log_rank() <= 0) {
      log(LogLevel::kWarning, "plans of earlier runs are not read: ", error.what(),
          "; they are made again");
    }
  }
}

std::string PlanCache::header() const { return concat(kTitle, "\n", owner_, "\n"); }

// Title, owner, one line a plan (the kind's numbers, the size, the plan's words), and the
// checksum of all that.
PlanCache::Plans PlanCache::read() const {
  const std::string text = read_file(path_, size_t{16} << 20);
  const size_t end = text.rfind('\n', text.size() - std::min<size_t>(text.size(), 2));
  check(
      end != std::string::npos && text.substr(end + 1) == checksum(text.substr(0, end + 1)) + "\n",
      ErrorCode::kDataLoss, path_, ": cut or changed");
  check(text.starts_with(header()), ErrorCode::kDataLoss, path_, ": not of ", owner_);
  Plans plans;
  std::istringstream lines(text.substr(header().size(), end + 1 - header().size()));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    size_t count = 0;
    words >> count;
    Kind kind(std::min<size_t>(count, 64));
    for (int64_t& number : kind) words >> number;
    int64_t size = 0;
    Plan plan{};
    words >> size >> std::hex;
    for (uint64_t& word : plan) words >> word;
    check(!words.fail(), ErrorCode::kDataLoss, path_, ": no plan: ", line);
    plans.insert_or_assign({std::move(kind), size}, plan);
  }
  return plans;
}

std::optional<PlanCache::Plan> PlanCache::find(const Kind& kind, int64_t size) const {
  const std::lock_guard lock(mutex_);
  const auto found = plans_.find({kind, size});
  if (found == plans_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::pair<int64_t, PlanCache::Plan>> PlanCache::nearest(const Kind& kind,
                                                                    int64_t size) const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<int64_t, Plan>> all;
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  for (auto at = plans_.lower_bound({kind, kLeast}); at != plans_.end() && at->first.first == kind;
       ++at) {
    all.emplace_back(at->first.second, at->second);
  }
  std::ranges::stable_sort(all, {},
                           [&](const auto& sized) { return std::abs(sized.first - size); });
  return all;
}

void PlanCache::add(const Kind& kind, int64_t size, const Plan& plan) {
  constexpr auto kInterval = std::chrono::seconds(10);
  const std::lock_guard lock(mutex_);
  changed_ |= plans_.try_emplace({kind, size}, plan).second;
  if (std::chrono::steady_clock::now() - written_ > kInterval) write();
}

void PlanCache::save() {
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) write();
}

void PlanCache::write() {
  if (!changed_ || path_.empty()) return;
  changed_ = false;
  written_ = std::chrono::steady_clock::now();
  namespace fs = std::filesystem;
  try {
    if (fs::exists(path_)) plans_.merge(read());
  } catch (const Error&) {  // replaced
  }
  std::ostringstream text;
  text << header();
  for (const auto& [key, plan] : plans_) {
    const auto& [kind, size] = key;
    text << std::dec << kind.size();
    for (const int64_t number : kind) text << ' ' << number;
    text << ' ' << size << std::hex;
    for (const uint64_t word : plan) text << ' ' << word;
    text << '\n';
  }
  const std::string own = concat(path_, ".", getpid(), ".part");
  std::error_code error;
  fs::create_directories(fs::path(path_).parent_path(), error);
  {
    std::ofstream file(own, std::ios::binary);
    file << text.str() << checksum(text.str()) << '\n';
    if (!file.flush()) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(own, path_, error);
  if (error) fs::remove(own, error);
}

}  // namespace tessera::ops
