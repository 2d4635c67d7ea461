// SPDX-License-Identifier: MIT
#pragma once
// One hash of all rows of a table, in order.
#include <cstdint>
#include <string>

#include "lib/core/hash.h"
#include "tessera/data/dataset.h"

namespace tessera {

class RowsHash {
 public:
  void add(const Example& row);
  std::string text() const;  // "120 rows, XXH3 ..."

 private:
  Xxh3Stream stream_;
  int64_t rows_ = 0;
};

}  // namespace tessera
