// SPDX-License-Identifier: MIT
#include "lib/checkpoint/agreement.h"

#include <optional>

#include "lib/core/failure.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// First byte of a rank's message: kGood before a result, an ErrorCode before an error's text.
constexpr char kGood = 'g';
constexpr char kFirstCode = '0';

std::string outcome(const std::function<std::string()>& fn) {
  try {
    return kGood + fn();
  } catch (...) {
    const Failure failure = current_failure();
    return static_cast<char>(kFirstCode + static_cast<int>(failure.code)) + failure.message;
  }
}

}  // namespace

std::vector<std::string> on_all_ranks(ControlChannel& ranks,
                                      const std::function<std::string()>& fn) {
  std::vector<std::string> said{outcome(fn)};
  if (ranks.size() > 1) said = ranks.exchange(said.front());
  std::optional<size_t> first;
  size_t failed = 0;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].front() == kGood) continue;
    ++failed;
    if (!first) first = rank;
  }
  if (first) {
    const std::string& bad = said[*first];
    const auto code = static_cast<ErrorCode>(bad.front() - kFirstCode);
    const std::string where = said.size() > 1 ? concat("rank ", *first, ": ") : "";
    const std::string others = failed > 1 ? concat(" (and ", failed - 1, " more ranks)") : "";
    throw Error(code, where + bad.substr(1) + others);
  }
  for (std::string& text : said) text.erase(0, 1);
  return said;
}

void all_ranks_do(ControlChannel& ranks, const std::function<void()>& fn) {
  on_all_ranks(ranks, [&] {
    fn();
    return std::string();
  });
}

std::string rank_0_does(ControlChannel& ranks, const std::function<std::string()>& fn) {
  return on_all_ranks(ranks, [&] { return ranks.rank() == 0 ? fn() : std::string(); }).front();
}

}  // namespace tessera
