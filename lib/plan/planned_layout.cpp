// SPDX-License-Identifier: MIT
#include "lib/plan/planned_layout.h"

#include <ATen/ATen.h>

#include <memory>

#include "lib/plan/equal_passes.h"
#include "tessera/core/key_value_cache.h"

namespace tessera {

PlannedLayout with_passes(PlannedLayout layout) {
  if (layout.passes == nullptr) layout.passes = std::make_shared<EqualPasses>();
  return layout;
}

BatchShape shape_of(const MicroBatch& micro_batch) {
  const at::Tensor &ids = micro_batch.input_ids, &labels = micro_batch.labels;
  return {
      .rows = ids.size(0),
      .length = ids.size(1),
      .packed = micro_batch.packed.lengths,
      .sequence = micro_batch.packed.sequence,
      .masked = micro_batch.attention_mask.defined(),
      .labels = labels.dim() == 1 ? labels.size(0) : 0,
      .head_rows = micro_batch.head_positions.defined() ? micro_batch.head_positions.size(0) : 0};
}

MicroBatch micro_batch_of(const BatchShape& shape) {
  const auto empty = [](at::IntArrayRef sizes, at::ScalarType dtype) {
    return at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
  };
  const int64_t tokens = shape.rows * shape.length;
  MicroBatch batch;
  batch.input_ids = empty({shape.rows, shape.length}, at::kLong);
  batch.labels = shape.labels > 0 ? empty({shape.labels}, at::kLong)
                                  : empty({shape.rows, shape.length}, at::kLong);
  if (shape.masked) batch.attention_mask = empty({shape.rows, shape.length}, at::kBool);
  if (shape.head_rows > 0) batch.head_positions = empty({shape.head_rows}, at::kLong);
  if (!shape.packed.empty()) {
    PackedRows& packed = batch.packed;
    packed.lengths = shape.packed;
    packed.sequence = shape.sequence;
    packed.offsets = empty({static_cast<int64_t>(shape.packed.size()) + 1}, at::kInt);
    packed.positions = empty({shape.rows, shape.length}, at::kLong);
    packed.first_keys =
        empty({(tokens + shape.sequence - 1) / shape.sequence, shape.sequence}, at::kInt);
    packed.position_count = packed.longest();
  }
  if (shape.capacity > 0) {
    batch.decode_state.cache = std::make_shared<KeyValueCache>(shape.rows, shape.capacity);
    if (shape.begun) batch.decode_state.lengths = empty({shape.rows}, at::kLong);
  }
  batch.sample_count = shape.rows;
  batch.token_count = tokens;
  batch.target_count = shape.labels > 0 ? shape.labels : tokens;
  return batch;
}

}  // namespace tessera
