// SPDX-License-Identifier: MIT
#pragma once
// Map from byte ranges to values.
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace tessera {

// T::after(bytes): the value for a range that begins `bytes` later.
template <typename T>
class Ranges {
 public:
  struct Known {
    int64_t begin = 0, end = 0;
    T what;
  };

  void clear(int64_t begin, int64_t end) {
    cut(begin);
    cut(end);
    known_.erase(known_.lower_bound(begin), known_.lower_bound(end));
  }
  void set(int64_t begin, int64_t end, T what) {
    if (begin >= end) return;
    clear(begin, end);
    known_.emplace(begin, std::pair{end, std::move(what)});
  }
  // Entries in order, clipped to the range.
  std::vector<Known> in(int64_t begin, int64_t end) const {
    std::vector<Known> found;
    auto next = known_.upper_bound(begin);
    if (next != known_.begin()) --next;
    for (; next != known_.end() && next->first < end; ++next) {
      const auto& [to, what] = next->second;
      if (to <= begin) continue;
      const int64_t from = std::max(begin, next->first);
      found.push_back({from, std::min(end, to), what.after(from - next->first)});
    }
    return found;
  }

 private:
  void cut(int64_t at) {
    auto next = known_.lower_bound(at);
    if (next == known_.begin()) return;
    --next;
    auto& [end, what] = next->second;
    if (end <= at) return;
    known_.emplace(at, std::pair{end, what.after(at - next->first)});
    end = at;
  }

  std::map<int64_t, std::pair<int64_t, T>> known_;
};

}  // namespace tessera
