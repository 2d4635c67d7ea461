#include "tests/parity/parity.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tessera/comm/device_mesh.h"
#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tests/support/toy_models.h"

namespace tessera::testing {

std::string ParityRow::name() const {
  return concat(parallel.strategy, " ranks=", ranks, " accumulation=", accumulation, " ",
                parallel.precision.parameter, parallel.overlap ? "" : " no-overlap",
                parallel.reduce_at_boundary ? " at-boundary" : "",
                " bucket=", parallel.bucket_bytes, " persist=", parallel.persistence_threshold,
                " prefetch=", parallel.prefetch_blocks);
}

ParityResult run_parity(Communicator& comm, const ParityRow& row, const ParityWork& work) {
  DeviceMesh mesh(comm, {.data = comm.size()});
  auto strategy = make_strategy(row.parallel, mesh);
  strategy->attach(work.model, {.device = comm.device(), .seed = work.seed, .source = work.source},
                   make_adamw({.weight_decay = work.weight_decay}));
  TrainerOptions options = work.trainer;
  options.device = comm.device();
  Trainer trainer(*strategy, options);

  auto share = [&](const MicroBatch& global) {
    const int64_t rows = global.input_ids.size(0) / comm.size() / row.accumulation;
    std::vector<MicroBatch> mine;
    for (int a = 0; a < row.accumulation; ++a) {
      mine.push_back(rows_of(global, (comm.rank() * row.accumulation + a) * rows, rows));
    }
    return mine;
  };
  size_t next = 0;
  const int64_t sent_before = mesh.axis(Axis::kData).bytes_sent();
  ParityResult result;
  trainer.fit(
      [&]() -> std::vector<MicroBatch> {
        if (next == work.global_batches.size()) return {};
        return share(work.global_batches[next++]);
      },
      [&](const StepReport& report) {
        result.loss.push_back(report.loss);
        result.grad_norm.push_back(report.grad_norm);
        result.clip.push_back(report.clip_coefficient);
      });
  result.bytes_sent = mesh.axis(Axis::kData).bytes_sent() - sent_before;
  bool evaluated = false;
  const EvalReport eval = trainer.evaluate([&]() -> std::vector<MicroBatch> {
    if (std::exchange(evaluated, true)) return {};
    return share(work.global_batches.front());
  });
  result.eval_loss = eval.loss;
  result.counters = eval.counters;
  result.memory = strategy->memory();
  strategy->visit_parameters(
      [&](const std::string& block, const std::string& name, const at::Tensor& value) {
        result.parameters[block + "." + name] = value.to(at::kCPU, /*non_blocking=*/false).clone();
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
  if (actual.parameters.size() != expected.parameters.size()) {
    return concat(actual.parameters.size(), " parameters instead of ", expected.parameters.size());
  }
  for (const auto& [name, value] : expected.parameters) {
    const at::Tensor& other = actual.parameters.at(name);
    const double error = (other - value).norm().item<double>();
    const double norm = value.norm().item<double>();
    if (!(error <= tolerance * norm)) {
      const int64_t index = (other - value).abs().argmax().item<int64_t>();
      return concat("parameter ", name, " differs by ", error / norm,
                    " relative; largest at element ", index, ": ",
                    other.flatten()[index].item<double>(), ", expected ",
                    value.flatten()[index].item<double>());
    }
  }
  return "";
}

}  // namespace tessera::testing
