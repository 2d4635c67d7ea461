// SPDX-License-Identifier: MIT
#include "tests/parity/parity.h"

#include <ATen/ATen.h>

#include "tessera/comm/local.h"
#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tests/support/toy_models.h"

namespace tessera::testing {

std::string ParityRow::name() const {
  const char* offload[] = {"", " offload=optimizer", " offload=optimizer+params"};
  const char* attention[] = {"auto", "heads", "keys"};
  const char* step[] = {"", " step=host", " step=device", " step=both"};
  return concat(
      parallel.strategy, " ", pipeline, "x", data(), "x", tensor,
      context > 1 ? concat(" context=", context, " by ",
                           attention[static_cast<int>(parallel.context_attention)])
                  : "",
      expert > 1 ? concat(" expert=", expert) : "", " accumulation=", accumulation, " ",
      parallel.precision.parameter, pipeline > 1 ? " " + parallel.pipeline.schedule : "",
      parallel.pipeline.shared_vocabulary ? " shared-vocabulary" : "",
      parallel.sequence_parallel ? " sequence-parallel" : "",
      offload[static_cast<int>(parallel.offload.what)],
      parallel.offload.activations ? " offloads activations" : "",
      parallel.save_attention_outputs ? " saves attention" : "",
      step[static_cast<int>(parallel.offload.step)],
      parallel.offload.device_bytes > 0 ? concat(" on-device=", parallel.offload.device_bytes) : "",
      parallel.gradient_checkpointing ? " checkpointing" : "",
      parallel.recomputed_blocks.empty()
          ? ""
          : concat(" recomputes=", parallel.recomputed_blocks.size()),
      parallel.unit_numel > 0 ? concat(" unit=", parallel.unit_numel) : "",
      parallel.coalesce_bytes > 0 ? concat(" message=", parallel.coalesce_bytes) : "",
      parallel.reshard_after_forward ? "" : " no-reshard",
      parallel.shard_ranks > 0 ? concat(" shard_ranks=", parallel.shard_ranks) : "",
      parallel.overlap ? "" : " no-overlap", parallel.reduce_at_boundary ? " at-boundary" : "",
      " bucket=", parallel.bucket_bytes, " persist=", parallel.persistence_threshold,
      " prefetch=", parallel.prefetch_blocks);
}

ParityWork token_work(ModelSpec model, const TokenBatches& batches, PlainForward forward) {
  ParityWork work{.model = std::move(model), .forward = std::move(forward)};
  for (int step = 0; step < batches.steps; ++step) {
    work.global_batches.push_back(toy_micro_batch({.vocabulary = batches.vocabulary}, batches.rows,
                                                  batches.sequence, batches.first_seed + step));
  }
  work.trainer.max_grad_norm = 0.5;
  work.trainer.schedule = {.peak = 2e-3, .warmup_steps = 1, .total_steps = 8};
  return work;
}

std::vector<MicroBatch> share_of(const ParityWork& work, size_t step, const ParityRow& row,
                                 int data_rank) {
  if (work.batches) return work.batches(step, row, data_rank);
  const MicroBatch& global = work.global_batches[step];
  const int64_t rows = global.input_ids.size(0) / row.data() / row.accumulation;
  const int64_t first = int64_t{data_rank} * row.accumulation;
  std::vector<MicroBatch> mine;
  for (int a = 0; a < row.accumulation; ++a) {
    mine.push_back(rows_of(global, (first + a) * rows, rows));
  }
  return mine;
}

RankRecord run_parity(Communicator& comm, const ParityRow& row, const ParityWork& work,
                      bool visits) {
  const Player player(
      comm, {.model = work.model,
             .mesh = row.mesh(),
             .parallel = row.parallel,
             .optimizer =
                 work.optimizer ? work.optimizer : make_adamw({.weight_decay = work.weight_decay}),
             .seed = work.seed,
             .source = work.source});
  Strategy& strategy = player.strategy();
  TrainerOptions options = work.trainer;
  options.device = comm.device();
  Trainer trainer(strategy, options);

  const auto share = [&](size_t step) { return share_of(work, step, row, player.data_rank()); };
  RankRecord record;
  record.steps.resize(work.global_batches.size());
  size_t next = 0, reported = 0;
  const auto visit = [&] {
    if (next == 0) {
      record.initial = parameters_of(strategy);
    } else {
      record.steps[next - 1].gradients = gradients_of(strategy);
      record.steps[next - 1].parameters = parameters_of(strategy);
      record.steps[next - 1].buffers = buffers_of(strategy);
    }
  };
  trainer.fit(
      [&]() -> std::vector<MicroBatch> {
        if (visits) visit();
        if (next == work.global_batches.size()) return {};
        return share(next++);
      },
      [&](const StepReport& report) {
        StepRecord& step = record.steps.at(reported++);
        step = {.loss = report.loss,
                .targets = report.target_count,
                .norm = report.grad_norm,
                .clip = report.clip_coefficient,
                .loss_scale = report.loss_scale,
                .update_scale = report.clip_coefficient / report.loss_scale,
                .learning_rate = report.learning_rate,
                .skipped = report.skipped,
                .gradients = std::move(step.gradients),
                .parameters = std::move(step.parameters),
                .buffers = std::move(step.buffers)};
      });
  record.steps.resize(reported);
  if (!visits) record.steps.back().gradients = gradients_of(strategy);
  bool evaluated = false;
  const EvalReport eval = trainer.evaluate([&]() -> std::vector<MicroBatch> {
    if (std::exchange(evaluated, true)) return {};
    return share(0);
  });
  record.evaluations.push_back({reported, eval.loss, eval.target_count, eval.counters});
  record.memory = strategy.memory();
  record.final = parameters_of(strategy);
  return record;
}

std::vector<RankRecord> run_on_threads(const ParityRow& row, const ParityWork& work, bool visits) {
  std::vector<RankRecord> records(static_cast<size_t>(row.ranks));
  run_local_ranks(row.ranks, [&](Communicator& comm) {
    records[static_cast<size_t>(comm.rank())] = run_parity(comm, row, work, visits);
  });
  return records;
}

RankRecord without_key_biases(RankRecord record) {
  std::erase_if(record.final, [](const auto& item) {
    return item.first.ends_with("query_key_value.bias") || item.first.ends_with("c_attn.bias");
  });
  return record;
}

std::string difference(const RankRecord& actual, const RankRecord& expected, double tolerance) {
  const EvaluationRecord &eval = actual.evaluations.back(), &other = expected.evaluations.back();
  // Gradients far below the total norm (key biases: rounding noise) are compared relative to it.
  const double whole = expected.steps.empty() ? 0 : expected.steps.back().norm;
  const auto of_steps = [&](double StepRecord::*number) {
    return difference(series(actual, number), series(expected, number), tolerance);
  };
  for (const auto& [what, text] :
       {std::pair("loss", of_steps(&StepRecord::loss)),
        {"gradient norm", of_steps(&StepRecord::norm)},
        {"clip coefficient", of_steps(&StepRecord::clip)},
        {"evaluation counter", difference(eval.counters, other.counters, tolerance)},
        {"evaluation loss", difference({eval.loss}, {other.loss}, tolerance)},
        {"gradient", difference(actual.steps.back().gradients, expected.steps.back().gradients,
                                tolerance, 0.05 * whole)},
        {"parameter", difference(actual.final, expected.final, tolerance)}}) {
    if (!text.empty()) return concat(what, ": ", text);
  }
  return "";
}

}  // namespace tessera::testing
