// SPDX-License-Identifier: MIT
#pragma once
// The rows that a benchmark trains on.
#include <optional>
#include <vector>

#include "benchmarks/strategies/bench_options.h"
#include "lib/data/supervised_share.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/core/micro_batch.h"
#include "tessera/data/data_loader.h"

namespace tessera::bench {

// With --rows fixed: micro-batches of random ids, all of --max_seq_length tokens and supervised.
// With padded, left or packed: rows with lengths like SQuAD's (log-normal, mean 183, at most
// --max_seq_length), of which
// --supervise answer counts the last few tokens, as a DataLoader packs them, or leaves their
// padding out, or (--padding_free false) pads them.
class RowSource {
 public:
  RowSource(const Options& options, const DeviceMesh& mesh, int64_t micro_batch, int64_t vocabulary,
            at::Device device);

  // The rank's part of the next step; the same on all ranks that work on the same micro-batches.
  std::vector<MicroBatch> next();
  // Of all ranks in the step that next() gave last, padding not counted.
  int64_t tokens() const { return tokens_; }
  int64_t rows() const { return global_rows_; }
  // Of the positions, those with a target.
  double share() const { return loader_ ? supervised_share(ragged_) : 1; }

 private:
  std::vector<MicroBatch> draw();

  const Options& options_;
  const int64_t micro_batch_, vocabulary_, data_rank_, global_rows_;
  const at::Device device_;
  int64_t steps_ = 0, tokens_ = 0;
  TokenTable ragged_;
  std::optional<DataLoader> loader_;
};

}  // namespace tessera::bench
