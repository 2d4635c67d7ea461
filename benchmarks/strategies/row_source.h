// SPDX-License-Identifier: MIT
#pragma once
// Rows for training benchmarks.
#include <optional>
#include <vector>

#include "benchmarks/strategies/bench_options.h"
#include "lib/data/supervised_share.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/core/micro_batch.h"
#include "tessera/data/data_loader.h"

namespace tessera::bench {

// Micro-batches of random ids. --rows fixed: all of --max_seq_length tokens, all supervised.
// padded, left or packed: lengths like SQuAD's (log-normal, mean 183, at most --max_seq_length),
// with only the last few tokens supervised under --supervise answer. A DataLoader packs them, makes
// them padding-free, or (--padding_free false) pads them.
class RowSource {
 public:
  RowSource(const Options& options, const DeviceMesh& mesh, int64_t micro_batch, int64_t vocabulary,
            at::Device device);

  // The rank's part of the next step; equal on ranks that share micro-batches.
  std::vector<MicroBatch> next();
  // Tokens of all ranks in next()'s last step, without padding.
  int64_t tokens() const { return tokens_; }
  int64_t rows() const { return global_rows_; }
  // Share of positions with a target.
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
