// SPDX-License-Identifier: MIT
// Scores in place of the loss: prediction and generation with a ShardingStrategy.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "backends/common/attached_model.h"
#include "backends/common/cut_rows.h"
#include "backends/common/device_graph_runner.h"
#include "backends/common/process_groups.h"
#include "backends/common/step_agreement.h"
#include "lib/core/trace.h"
#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/error.h"
#include "tessera/core/key_value_cache.h"

namespace tessera {

std::vector<at::Tensor> ShardingStrategy::predict(std::span<const MicroBatch> micro_batches,
                                                  const ScoreSelection& select) {
  const TraceRange range("predict");
  const at::NoGradGuard no_grad;
  begin_predictions(micro_batches);
  // Work that involves other ranks or the host is never captured.
  const bool records_rows = sharers() == 1 && !placement_ && parameters_->records() &&
                            model_->all_recordable(/*training=*/false);
  std::vector<at::Tensor> results;
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    const DecodeState& rows = step_->micro_batches[m].decode_state;
    const auto scores = [&] {
      MicroBatchRun run = make_run(m, 0, model_->blocks.size());
      forward(run);
      return run.hidden;
    };
    const bool repeats = rows.begun() && rows.cache->repeated() != nullptr && records_rows;
    const at::Tensor all = repeats ? rows.cache->repeated()->run(
                                         {step_->micro_batches[m].input_ids, rows.lengths}, scores)
                                   : scores();
    results.push_back(select ? select(all, m) : all);
  }
  finish_predictions();
  return results;
}

// Prefill may be packed.
bool ShardingStrategy::supports_kv_cache() const {
  return std::ranges::all_of(model_->blocks, [](const auto& block) {
    return block->supports_kv_cache() && block->supports_packed_rows();
  });
}

// Decoding steps skip the check of the ranks' agreement, which the first step made.
void ShardingStrategy::begin_predictions(std::span<const MicroBatch> micro_batches) {
  enter();
  require_whole_rows(ranks_->context(), name(), "predict()");
  check(!micro_batches.empty(), ErrorCode::kInvalidArgument, name(),
        ": a prediction without micro-batches");
  step_->with_gradients = step_->accumulates = step_->is_pass = false;
  step_->with_scores = true;
  step_->micro_batches.assign(micro_batches.begin(), micro_batches.end());
  step_->seeds.clear();
  for (const MicroBatch& batch : step_->micro_batches) {
    model_->require_packed_rows(batch, name());
    check(!batch.decode_state.defined() || ranks_->expert() == nullptr, ErrorCode::kInvalidArgument,
          name(),
          ": rows piece by piece (MicroBatch::decode_state, as in generation) are not built for an "
          "expert axis: its ranks would have to decode equally many. Give whole rows, or leave the "
          "expert axis at 1 (--expert_parallel 1)");
    check(!batch.decode_state.defined() || supports_kv_cache(), ErrorCode::kInvalidArgument, name(),
          ": rows were given piece by piece (MicroBatch::decode_state), but not every block says "
          "that it goes on with them (Block::supports_kv_cache, supports_packed_rows); give whole "
          "rows");
  }
  agreement_->begin(StepOrder::Call::kEvaluation);
  const auto begun = [](const MicroBatch& batch) { return batch.decode_state.begun(); };
  if (std::ranges::any_of(step_->micro_batches, begun)) return;
  agreement_->tell();
  model_->adopt_statistics(data());
}

void ShardingStrategy::finish_predictions() {
  if (agreement_->pending()) agreement_->check_agreement();
  step_->micro_batches.clear();
  agreement_->end();
}

}  // namespace tessera
