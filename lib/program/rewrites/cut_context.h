// SPDX-License-Identifier: MIT
#pragma once
// Rows on a context axis as an attention of a program reads them.
#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/model/block_context.h"
#include "tessera/model/cut_rows.h"

namespace tessera::program {

// Null for whole rows. padded: whether the attention takes the mask.
inline std::shared_ptr<const CutRows> cut_rows_for(const BlockContext& context, bool padded) {
  if (context.cut_rows == nullptr || padded || !context.cut_rows->attention_mask.defined()) {
    return context.cut_rows;
  }
  auto without = std::make_shared<CutRows>(*context.cut_rows);
  without->attention_mask = at::Tensor();
  return without;
}

}  // namespace tessera::program
