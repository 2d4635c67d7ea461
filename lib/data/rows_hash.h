// SPDX-License-Identifier: MIT
#pragma once
// Which rows a table has: one hash of all of them, in their order.
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
