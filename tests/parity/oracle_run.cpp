#include "tests/parity/oracle_run.h"

#include <ATen/ATen.h>

#include "lib/testing/fuzz_compare.h"
#include "tessera/comm/local.h"
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
  return {.mesh = {.pipeline = row.pipeline, .data = row.data(), .tensor = row.tensor},
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

ParityResult oracle_run(const ParityWork& work) {
  constexpr OracleDtypes kDtypes{.weights = at::kFloat, .compute = at::kDouble};
  Oracle oracle(work.model, {.seed = work.seed, .adamw = adamw_of(work), .forward = work.forward});
  ParityResult result;
  for (const MicroBatch& batch : work.global_batches) {
    const auto updates = static_cast<int64_t>(result.loss.size());
    const double learning_rate = work.trainer.schedule.at(updates);
    const OracleReport report = oracle.train(
        {{batch}}, {.learning_rate = learning_rate, .max_norm = work.trainer.max_grad_norm},
        kDtypes);
    result.loss.push_back(report.loss);
    result.grad_norm.push_back(report.norm);
    result.clip.push_back(report.clip);
    result.loss_scale.push_back(1);
    result.learning_rate.push_back(learning_rate);
    result.gradients = oracle.by_name(report.gradient);
  }
  const OracleLoss evaluation = oracle.evaluate({{work.global_batches.front()}}, kDtypes);
  result.eval_loss = evaluation.loss;
  result.counters = evaluation.counters;
  result.parameters = oracle.by_name(oracle.parameters());
  for (const auto& [name, value] : oracle.frozen()) result.parameters[name] = value.to(at::kFloat);
  return result;
}

RankRecord record_parity(Communicator& comm, const ParityRow& row, const ParityWork& work) {
  RankRecord record;
  const ParityResult result = run_parity(comm, row, work, [&](Strategy& strategy) {
    auto parameters = values_of(strategy, &Strategy::visit_parameters);
    if (record.initial.empty()) {
      record.initial = std::move(parameters);
      return;
    }
    StepRecord& step = record.steps.emplace_back();
    step.gradients = values_of(strategy, &Strategy::visit_gradients);
    step.parameters = std::move(parameters);
  });
  for (size_t i = 0; i < record.steps.size(); ++i) {
    StepRecord& step = record.steps[i];
    step.loss = result.loss[i];
    step.targets = result.targets[i];
    step.norm = result.grad_norm[i];
    step.clip = result.clip[i];
    step.update_scale = result.clip[i] / result.loss_scale[i];
    step.learning_rate = result.learning_rate[i];
    step.skipped = result.skipped[i];
  }
  record.final = result.parameters;
  record.evaluations.push_back(
      {record.steps.size(), result.eval_loss, result.eval_targets, result.counters});
  return record;
}

RunRecord record_on_threads(const ParityRow& row, const ParityWork& work) {
  RunRecord run;
  run.ranks.resize(static_cast<size_t>(row.ranks));
  run_local_ranks(row.ranks, [&](Communicator& comm) {
    run.ranks[static_cast<size_t>(comm.rank())] = record_parity(comm, row, work);
  });
  return run;
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
