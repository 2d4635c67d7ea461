#include "tests/parity/parity.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tessera/comm/device_mesh.h"
#include "tessera/comm/local.h"
#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tests/support/toy_models.h"

namespace tessera::testing {

std::string ParityRow::name() const {
  const char* offload[] = {"", " offload=optimizer", " offload=optimizer+params"};
  const char* step[] = {"", " step=host", " step=device"};
  return concat(
      parallel.strategy, " ", pipeline, "x", data(), "x", tensor, " accumulation=", accumulation,
      " ", parallel.precision.parameter, pipeline > 1 ? " " + parallel.pipeline.schedule : "",
      parallel.pipeline.shared_vocabulary ? " shared-vocabulary" : "",
      parallel.sequence_parallel ? " sequence-parallel" : "",
      offload[static_cast<int>(parallel.offload.what)],
      step[static_cast<int>(parallel.offload.step)],
      parallel.gradient_checkpointing ? " checkpointing" : "",
      parallel.unit_numel > 0 ? concat(" unit=", parallel.unit_numel) : "",
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

std::map<std::string, at::Tensor> values_of(Strategy& strategy,
                                            void (Strategy::*visit)(const ParameterVisitor&)) {
  std::map<std::string, at::Tensor> values;
  (strategy.*visit)([&](const VisitedParameter& p) {
    values[p.block + "." + p.name] = p.value.to(at::kCPU).clone();
  });
  return values;
}

ParityResult run_parity(Communicator& comm, const ParityRow& row, const ParityWork& work,
                        const std::function<void(Strategy&)>& between_steps) {
  DeviceMesh mesh(comm, {row.pipeline, row.data(), row.tensor});
  auto strategy = make_strategy(row.parallel, mesh);
  strategy->attach(
      work.model, {.device = comm.device(), .seed = work.seed, .source = work.source},
      work.optimizer ? work.optimizer : make_adamw({.weight_decay = work.weight_decay}));
  TrainerOptions options = work.trainer;
  options.device = comm.device();
  Trainer trainer(*strategy, options);

  auto share = [&](size_t step) { return share_of(work, step, row, mesh.coordinate(Axis::kData)); };
  size_t next = 0;
  ParityResult result;
  trainer.fit(
      [&]() -> std::vector<MicroBatch> {
        if (between_steps) between_steps(*strategy);
        if (next == work.global_batches.size()) return {};
        return share(next++);
      },
      [&](const StepReport& report) {
        result.loss.push_back(report.loss);
        result.grad_norm.push_back(report.grad_norm);
        result.clip.push_back(report.clip_coefficient);
        result.loss_scale.push_back(report.loss_scale);
        result.learning_rate.push_back(report.learning_rate);
        result.targets.push_back(report.target_count);
        result.skipped.push_back(report.skipped);
      });
  result.gradients = values_of(*strategy, &Strategy::visit_gradients);
  bool evaluated = false;
  const EvalReport eval = trainer.evaluate([&]() -> std::vector<MicroBatch> {
    if (std::exchange(evaluated, true)) return {};
    return share(0);
  });
  result.eval_loss = eval.loss;
  result.eval_targets = eval.target_count;
  result.counters = eval.counters;
  result.memory = strategy->memory();
  result.parameters = values_of(*strategy, &Strategy::visit_parameters);
  return result;
}

std::vector<ParityResult> run_on_threads(const ParityRow& row, const ParityWork& work) {
  std::vector<ParityResult> results(static_cast<size_t>(row.ranks));
  run_local_ranks(row.ranks, [&](Communicator& comm) {
    results[static_cast<size_t>(comm.rank())] = run_parity(comm, row, work);
  });
  return results;
}

ParityResult without_key_biases(ParityResult result) {
  std::erase_if(result.parameters, [](const auto& item) {
    return item.first.ends_with("query_key_value.bias") || item.first.ends_with("c_attn.bias");
  });
  return result;
}

namespace {

bool close(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max(std::abs(b), 1e-12);
}

std::string compare_series(const char* what, const std::vector<double>& actual,
                           const std::vector<double>& expected, double tolerance) {
  if (actual.size() != expected.size()) {
    return concat(what, ": ", actual.size(), " values instead of ", expected.size());
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!close(actual[i], expected[i], tolerance)) {
      return concat(what, " at step ", i + 1, " is ", actual[i], ", expected ", expected[i]);
    }
  }
  return "";
}

std::string compare_tensors(const char* what, const std::map<std::string, at::Tensor>& actual,
                            const std::map<std::string, at::Tensor>& expected, double tolerance,
                            double least_norm) {
  if (actual.size() != expected.size()) {
    return concat(actual.size(), " ", what, "s instead of ", expected.size());
  }
  for (const auto& [name, value] : expected) {
    if (!actual.contains(name)) return concat(what, " ", name, " is missing");
    const at::Tensor& other = actual.at(name);
    if (other.sizes() != value.sizes()) {
      return concat(what, " ", name, " has shape ", other.sizes(), ", expected ", value.sizes());
    }
    const double error = (other - value).norm().item<double>();
    const double norm = std::max(value.norm().item<double>(), least_norm);
    if (!(error <= tolerance * norm)) {
      const int64_t index = (other - value).abs().argmax().item<int64_t>();
      return concat(what, " ", name, " differs by ", error / norm, " relative; largest at element ",
                    index, ": ", other.flatten()[index].item<double>(), ", expected ",
                    value.flatten()[index].item<double>());
    }
  }
  return "";
}

}  // namespace

std::string difference(const ParityResult& actual, const ParityResult& expected, double tolerance) {
  for (const auto& [what, a, b] :
       {std::tuple("loss", &actual.loss, &expected.loss),
        std::tuple("gradient norm", &actual.grad_norm, &expected.grad_norm),
        std::tuple("clip coefficient", &actual.clip, &expected.clip),
        std::tuple("evaluation counter", &actual.counters, &expected.counters)}) {
    const std::string text = compare_series(what, *a, *b, tolerance);
    if (!text.empty()) return text;
  }
  if (!close(actual.eval_loss, expected.eval_loss, tolerance)) {
    return concat("evaluation loss is ", actual.eval_loss, ", expected ", expected.eval_loss);
  }
  // Gradients that are small beside the whole (those of key biases are rounding noise) are measured
  // against it.
  const double whole = expected.grad_norm.empty() ? 0 : expected.grad_norm.back();
  const std::string text =
      compare_tensors("gradient", actual.gradients, expected.gradients, tolerance, 0.05 * whole);
  if (!text.empty()) return text;
  return compare_tensors("parameter", actual.parameters, expected.parameters, tolerance, 0);
}

}  // namespace tessera::testing
