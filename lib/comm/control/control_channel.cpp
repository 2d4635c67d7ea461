// SPDX-License-Identifier: MIT
#include "tessera/comm/control_channel.h"

#include <map>
#include <sstream>

#include "tessera/core/error.h"

namespace tessera {

std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += concat(text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += concat("-", ranks[last]);
    i = last + 1;
  }
  return text;
}

namespace {

// First line in which two texts differ.
std::string first_difference(const std::string& expected, const std::string& actual) {
  if (expected.find('\n') == std::string::npos && actual.find('\n') == std::string::npos) {
    return concat("it is '", actual.substr(0, 200), "' instead of '", expected.substr(0, 200), "'");
  }
  std::istringstream a(expected), b(actual);
  for (int line = 1;; ++line) {
    std::string left = "(nothing)", right = "(nothing)";
    const bool more_left = static_cast<bool>(std::getline(a, left));
    const bool more_right = static_cast<bool>(std::getline(b, right));
    if (!more_left && !more_right) return "in line ends";
    if (left != right) {
      return concat("line ", line, " is '", right.substr(0, 200), "' instead of '",
                    left.substr(0, 200), "'");
    }
  }
}

}  // namespace

void require_same_on_all_ranks(ControlChannel& channel, const std::string& what,
                               const std::string& text) {
  const std::vector<std::string> texts = channel.exchange(text);
  std::map<std::string, std::vector<int>> ranks_with;
  for (size_t r = 0; r < texts.size(); ++r) ranks_with[texts[r]].push_back(static_cast<int>(r));
  if (ranks_with.size() == 1) return;
  const std::string* expected = &texts[0];
  for (const auto& [value, ranks] : ranks_with) {
    if (ranks.size() > ranks_with[*expected].size()) expected = &value;
  }
  std::string message = what + " is not the same on all ranks:";
  for (const auto& [value, ranks] : ranks_with) {
    if (value == *expected) continue;
    message += concat(" on rank ", rank_list(ranks), " ", first_difference(*expected, value), ";");
  }
  fail(ErrorCode::kInvalidArgument, message, " start every rank with the same settings and files");
}

}  // namespace tessera
