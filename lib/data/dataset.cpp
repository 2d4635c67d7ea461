// SPDX-License-Identifier: MIT
#include "tessera/data/dataset.h"

#include <algorithm>
#include <charconv>

#include "tessera/core/error.h"

namespace tessera {

int64_t Dataset::longest() const {
  size_t longest = 0;
  for (const Example& example : examples) longest = std::max(longest, example.input_ids.size());
  return static_cast<int64_t>(longest);
}

Slice Slice::parse(const std::string& text) {
  const size_t colon = text.find(':');
  check(colon != text.npos, ErrorCode::kInvalidArgument, "slice \"", text,
        "\": expected BEGIN:END, such as 0:1000 or 1000:");
  const auto number = [&](size_t begin, size_t end, int64_t missing) {
    if (begin == end) return missing;
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    check(error == std::errc() && stop == text.data() + end && value >= 0,
          ErrorCode::kInvalidArgument, "slice \"", text,
          "\": expected numbers that are not negative");
    return value;
  };
  const Slice slice{number(0, colon, 0), number(colon + 1, text.size(), -1)};
  check(slice.end < 0 || slice.begin < slice.end, ErrorCode::kInvalidArgument, "slice \"", text,
        "\" is empty");
  return slice;
}

std::pair<int64_t, int64_t> Slice::within(int64_t rows) const {
  const int64_t last = end < 0 ? rows : end;
  check(begin < last && last <= rows, ErrorCode::kInvalidArgument, "slice ", begin, ":",
        end < 0 ? "" : std::to_string(end), " does not fit the data, which has ", rows, " rows");
  return {begin, last};
}

Dataset Slice::of(Dataset dataset) const {
  const auto [first, last] = within(dataset.size());
  auto& rows = dataset.examples;
  rows.erase(rows.begin() + last, rows.end());
  rows.erase(rows.begin(), rows.begin() + first);
  return dataset;
}

}  // namespace tessera
