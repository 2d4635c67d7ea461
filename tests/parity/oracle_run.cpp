// SPDX-License-Identifier: MIT
#include "tests/parity/oracle_run.h"

#include <ATen/ATen.h>

#include "lib/testing/fuzz_compare.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

AdamWConfig adamw_of(const ParityWork& work) {
  check(!work.optimizer && work.source == nullptr, ErrorCode::kInternal,
        "the oracle has AdamW and drawn weights only");
  return {.weight_decay = work.weight_decay};
}

FuzzCase case_of(const ParityRow& row, const ParityWork& work) {
  const AdamWConfig adamw = adamw_of(work);
  const LossScalerConfig& scaler = work.trainer.loss_scaler;
  return {.mesh = row.mesh(),
          .parallel = row.parallel,
          .accumulation = row.accumulation,
          .loss_scale = scaler.enabled ? scaler.initial_scale : 0,
          .max_norm = work.trainer.max_grad_norm,
          .weight_decay = adamw.weight_decay,
          .beta1 = adamw.beta1,
          .beta2 = adamw.beta2,
          .epsilon = adamw.epsilon,
          .seed = work.seed};
}

GlobalBatch cut(const ParityWork& work, size_t step, const ParityRow& row) {
  GlobalBatch batch;
  for (int rank = 0; rank < row.data(); ++rank) batch.push_back(share_of(work, step, row, rank));
  return batch;
}

}  // namespace

RankRecord oracle_run(const ParityWork& work) {
  constexpr OracleDtypes kDtypes{.weights = at::kFloat, .compute = at::kDouble};
  Oracle oracle(work.model, {.seed = work.seed, .adamw = adamw_of(work), .forward = work.forward});
  RankRecord record;
  for (const MicroBatch& batch : work.global_batches) {
    const auto updates = static_cast<int64_t>(record.steps.size());
    const double learning_rate = work.trainer.schedule.at(updates);
    const OracleReport report = oracle.train(
        {{batch}}, {.learning_rate = learning_rate, .max_norm = work.trainer.max_grad_norm},
        kDtypes);
    record.steps.push_back({.loss = report.loss,
                            .norm = report.norm,
                            .clip = report.clip,
                            .learning_rate = learning_rate,
                            .gradients = oracle.by_name(report.gradient)});
  }
  const OracleLoss evaluation = oracle.evaluate({{work.global_batches.front()}}, kDtypes);
  record.evaluations.push_back({.loss = evaluation.loss, .counters = evaluation.counters});
  record.final = oracle.by_name(oracle.parameters());
  for (const auto& [name, value] : oracle.frozen()) record.final[name] = value.to(at::kFloat);
  return record;
}

std::string oracle_difference(const ParityRow& row, const ParityWork& work, const RunRecord& run) {
  FuzzWork steps;
  for (size_t step = 0; step < work.global_batches.size(); ++step) {
    steps.steps.push_back(cut(work, step, row));
  }
  steps.evaluation = cut(work, 0, row);
  double worst = 0;
  return compare_with_oracle(case_of(row, work), {.model = work.model, .forward = work.forward},
                             steps, run, &worst);
}

}  // namespace tessera::testing
