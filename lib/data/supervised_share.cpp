// SPDX-License-Identifier: MIT
#include "lib/data/supervised_share.h"

#include <algorithm>
#include <iterator>

namespace tessera {

double supervised_share(const TokenTable& rows) {
  constexpr int64_t kRowsRead = 4096;
  if (rows.task() != Task::kCausal || rows.size() == 0) return 1;
  const int64_t stride = (rows.size() + kRowsRead - 1) / kRowsRead;
  int64_t targets = 0, tokens = 0;
  for (int64_t index = 0; index < rows.size(); index += stride) {
    const TokenRow row = rows.row(index);
    tokens += std::ssize(row.input_ids);
    for (size_t next = 1; next < row.input_ids.size(); ++next) {
      targets += row.label_at(next) != kIgnoredLabel;
    }
  }
  return static_cast<double>(targets) / static_cast<double>(std::max<int64_t>(1, tokens));
}

bool has_target(const TokenTable& rows) {
  if (rows.task() != Task::kCausal) return rows.size() > 0;
  for (int64_t index = 0; index < rows.size(); ++index) {
    const TokenRow row = rows.row(index);
    for (size_t next = 1; next < row.input_ids.size(); ++next) {
      if (row.label_at(next) != kIgnoredLabel) return true;
    }
  }
  return false;
}

}  // namespace tessera
