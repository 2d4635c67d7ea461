// SPDX-License-Identifier: MIT
#include "lib/data/rows_hash.h"

#include "tessera/core/error.h"

namespace tessera {

void RowsHash::add(const Example& row) {
  const auto update = [this](const auto& values) {
    const uint64_t count = values.size();
    stream_.update(&count, sizeof(count));
    stream_.update(values.data(), count * sizeof(values[0]));
  };
  update(row.input_ids);
  update(row.labels);
  update(row.attention_mask);
  ++rows_;
}

std::string RowsHash::text() const {
  return concat(rows_, " rows, XXH3 ", stream_.digest128().hex());
}

}  // namespace tessera
