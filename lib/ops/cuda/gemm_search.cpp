// SPDX-License-Identifier: MIT
#include "lib/ops/cuda/gemm_search.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "lib/core/rounding.h"

namespace tessera::ops::cuda {
namespace {

constexpr size_t kGood = 4;
constexpr size_t kTrialsOfSuggestions = 3, kTrialsOfGood = 2;  // per candidate

bool within(int64_t factor, int64_t tokens, int64_t other) {
  return tokens <= factor * other && other <= factor * tokens;
}

// True if an algorithm that is fast for one number of tokens is worth trying for the other.
bool alike(int64_t tokens, int64_t other) { return within(2, tokens, other); }

template <typename Map>
auto nearest_entry(const Map& sizes, int64_t size) {
  return std::ranges::min_element(sizes, {},
                                  [&](const auto& entry) { return std::abs(entry.first - size); });
}

// Entry of the nearest similar size, or the end.
template <typename Map>
auto nearest_alike(const Map& sizes, int64_t size) {
  const auto nearest = nearest_entry(sizes, size);
  return nearest != sizes.end() && alike(size, nearest->first) ? nearest : sizes.end();
}

}  // namespace

GemmSearch::GemmSearch(Algorithms candidates, bool suggested, int64_t tokens)
    : candidates_(std::move(candidates)),
      suggested_(suggested),
      tokens_(tokens),
      trials_(candidates_.size() * (suggested ? kTrialsOfSuggestions : kTrialsOfGood)) {}

bool GemmSearch::ended() const {
  return issued_ == trials_ &&
         std::ranges::all_of(took_, [](const Trial& trial) { return trial.end.query(); });
}

Algorithms GemmSearch::fastest_first() const {
  std::vector<std::pair<double, size_t>> times;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    times.emplace_back(std::numeric_limits<double>::infinity(), i);
  }
  for (const Trial& trial : took_) {
    double& least = times[trial.candidate].first;
    const double time = trial.begin.elapsed_time(trial.end);
    least = std::min(least, time / static_cast<double>(trial.tokens));
  }
  std::ranges::sort(times);
  Algorithms sorted;
  for (const auto& [time, candidate] : times) sorted.push_back(candidates_[candidate]);
  return sorted;
}

bool GemmSearch::of_one_size() const {
  return std::ranges::all_of(took_, [&](const Trial& trial) {
    return rounded_size(trial.tokens) == rounded_size(tokens_);
  });
}

Algorithms GemmSearches::known(const AlgorithmCache::Kind& kind, int64_t tokens) const {
  const int64_t size = rounded_size(tokens);
  if (const auto best = fastest_.find(kind, size)) return {*best};
  Algorithms all, known;
  const auto stored = fastest_.nearest(kind, size);
  if (const auto tried = good_.find(kind); tried != good_.end()) {
    const auto nearest = nearest_alike(tried->second, size);
    if (nearest != tried->second.end()) all = nearest->second;
  }
  // Only the nearest one of an earlier run: trying others would load their kernels.
  const size_t most = all.empty() ? 1 : kGood;
  for (const auto& [other, algorithm] : stored) {
    if (alike(size, other) && all.size() < most) all.push_back(algorithm);
  }
  for (const AlgorithmCache::Algorithm& algorithm : all) {
    if (known.size() < kGood && std::ranges::count(known, algorithm) == 0)
      known.push_back(algorithm);
  }
  return known;
}

Algorithms GemmSearches::instead(const AlgorithmCache::Kind& kind, int64_t tokens) {
  Algorithms others;
  if (!loaded_.contains(kind) || running(kind, tokens, /*suggested=*/true)) return others;
  std::set<int64_t>& put_off = put_off_[kind];
  const auto is_alike = [&](int64_t size) { return alike(size, tokens); };
  if (std::ranges::any_of(put_off, is_alike)) return others;
  if (const auto good = good_.find(kind); good != good_.end()) {
    others = nearest_entry(good->second, tokens)->second;
  }
  for (const auto& [size, algorithm] : fastest_.nearest(kind, tokens)) {
    if (others.size() < kGood) others.push_back(algorithm);
  }
  if (!others.empty()) put_off.insert(tokens);
  return others;
}

Algorithms GemmSearches::to_load(const AlgorithmCache::Kind& kind, int64_t tokens) {
  constexpr size_t kMost = 16;
  constexpr int64_t kFurthest = 4;  // ratio between the largest and smallest step of a run
  Algorithms algorithms;
  if (!loaded_.insert(kind).second) return algorithms;
  for (const auto& [size, algorithm] : fastest_.nearest(kind, tokens)) {
    if (!within(kFurthest, size, tokens) || std::ranges::count(algorithms, algorithm) > 0) continue;
    algorithms.push_back(algorithm);
    if (algorithms.size() == kMost) break;
  }
  return algorithms;
}

std::shared_ptr<GemmSearch> GemmSearches::running(const AlgorithmCache::Kind& kind, int64_t tokens,
                                                  bool suggested) const {
  const auto of_kind = running_.find(kind);
  if (of_kind == running_.end()) return nullptr;
  const int64_t size = rounded_size(tokens);
  if (const auto same = of_kind->second.find(size);
      same != of_kind->second.end() && same->second->suggested() == suggested) {
    return same->second;
  }
  if (!suggested) return nullptr;
  for (const auto& [other, search] : of_kind->second) {
    if (search->suggested() && alike(size, other)) return search;
  }
  return nullptr;
}

std::shared_ptr<GemmSearch> GemmSearches::begin(const AlgorithmCache::Kind& kind,
                                                Algorithms candidates, bool suggested,
                                                int64_t tokens) {
  auto search = std::make_shared<GemmSearch>(std::move(candidates), suggested, tokens);
  running_[kind][rounded_size(tokens)] = search;
  return search;
}

void GemmSearches::conclude(const AlgorithmCache::Kind& kind,
                            const std::shared_ptr<GemmSearch>& search) {
  auto& of_kind = running_[kind];
  const int64_t size = rounded_size(search->tokens());
  const auto entry = of_kind.find(size);
  if (entry == of_kind.end() || entry->second != search) return;
  of_kind.erase(entry);
  Algorithms sorted = search->fastest_first();
  if (search->of_one_size()) fastest_.settle(kind, size, sorted.front());
  sorted.resize(std::min(kGood, sorted.size()));
  if (search->suggested()) good_[kind].try_emplace(size, std::move(sorted));
}

}  // namespace tessera::ops::cuda
