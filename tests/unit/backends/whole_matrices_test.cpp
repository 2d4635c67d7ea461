// SPDX-License-Identifier: MIT
// A user's optimizer of whole matrices, which reads parameters, counts steps and has states of
// several shapes. Every layout equals one rank, also when resumed in another layout.
#include <ATen/ATen.h>

#include "lib/testing/fuzz_case.h"
#include "lib/testing/player.h"
#include "lib/testing/whole_state.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/matrix_optimizer.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int kMatrixSteps = 4, kMatrixStop = 2, kMatrixMicroBatches = 4;

// LAMB (You et al. 2020) with moments of rows and columns, as in Adafactor.
class Lamb : public MatrixOptimizer {
 public:
  std::string name() const override { return "Lamb"; }
  NamedShapes state_shapes(c10::IntArrayRef shape) const override {
    return {{"exp_avg", shape.vec()}, {"row", {shape[0], 1}}, {"column", {shape[1]}}};
  }
  at::Tensor update(const MatrixStep& step, NamedTensors& state) const override {
    const auto average = [&](size_t i, const at::Tensor& value) {
      state[i].second.mul_(0.9).add_(value, 0.1);
      return state[i].second / (1 - at::pow(0.9, step.step_count));
    };
    const at::Tensor first = average(0, step.gradient), square = step.gradient.square();
    const at::Tensor rows = average(1, square.mean(1, /*keepdim=*/true));
    const at::Tensor columns = average(2, square.mean(0));
    const at::Tensor second = rows * columns / columns.mean();
    const at::Tensor direction = first / (second.sqrt() + 1e-6);
    return direction * (step.parameter.norm() / direction.norm());
  }
  bool reads_parameter() const override { return true; }
  double weight_decay() const override { return 0.1; }
};

struct MatrixRun {
  WholeState stopped;
  std::vector<double> losses;
  Named parameters;
};

void train(const std::string& line, MatrixRun& run, const WholeState* from = nullptr) {
  const ToyConfig toy{.layers = 4};
  const FuzzCase layout = parse_case(line);
  play({.model = toy_language_model(toy),
        .mesh = layout.mesh,
        .parallel = layout.parallel,
        .optimizer = with_matrices(std::make_shared<Lamb>(), hidden_matrices(), make_adamw({}))},
       [&](Player& player) {
         Strategy& strategy = player.strategy();
         if (from != nullptr) {
           from->give(strategy.state());
           strategy.state_restored();
         }
         const int share = kMatrixMicroBatches / player.data_ranks();
         for (int step = from == nullptr ? 0 : kMatrixStop; step < kMatrixSteps; ++step) {
           if (step == kMatrixStop) run.stopped.take(strategy.state());
           std::vector<MicroBatch> mine;
           for (int m = 0; m < share; ++m) {
             const int place = step * kMatrixMicroBatches + player.data_rank() * share + m;
             mine.push_back(toy_micro_batch(toy, 2, 6, static_cast<uint64_t>(place)));
           }
           const StepRecord record = player.train(mine, {.max_norm = 0.1});
           if (player.rank() == 0) run.losses.push_back(record.loss);
         }
         const Named values = parameters_of(strategy);
         if (player.rank() == 0) run.parameters = values;
       });
}

const std::vector<std::string> kMatrixLayouts = {
    "strategy=ddp data=2",
    "strategy=zero1 data=4",
    "strategy=zero2 data=2 pipeline=2 bucket_bytes=700",
    "strategy=zero3 data=2 persistence_threshold=40",
    "strategy=fsdp data=4 shard_ranks=2 overlap=0",
    "strategy=zero3 data=2 offload=optimizer+params offload_step=host",
    "strategy=zero1 data=2 offload=optimizer offload_step=host offload_device_bytes=1000",
    "strategy=zero1 data=2 offload=optimizer offload_step=device chunk_numel=100"};

}  // namespace

TEST_CASE("an optimizer of whole matrices of one's own trains alike under every layout") {
  MatrixRun expected;
  train("strategy=single", expected);
  const auto state = expected.stopped.tensors();
  CHECK(state.at("layer.1.up.weight row").sizes() == at::IntArrayRef{24, 1});
  CHECK(state.at("layer.1.up.weight column").sizes() == at::IntArrayRef{12});
  CHECK(!state.contains("layer.1.up.weight exp_avg_sq"));
  CHECK(state.contains("layer.1.up.bias exp_avg_sq"));
  for (const std::string& line : kMatrixLayouts) {
    INFO(line);
    MatrixRun run;
    train(line, run);
    CHECK(run.stopped.problem() == "");
    CHECK(difference(run.losses, expected.losses, 1e-5) == "");
    CHECK(difference(run.parameters, expected.parameters, 1e-5) == "");
  }
}

TEST_CASE("a state has what owners of matrices keep: they go on under another layout") {
  MatrixRun expected;
  train("strategy=single", expected);
  const std::vector<double> rest(expected.losses.begin() + kMatrixStop, expected.losses.end());
  for (size_t i = 0; i < kMatrixLayouts.size(); ++i) {
    const std::string& then = kMatrixLayouts[(i + 3) % kMatrixLayouts.size()];
    INFO(kMatrixLayouts[i] << ", then " << then);
    MatrixRun stopped, resumed;
    train(kMatrixLayouts[i], stopped);
    train(then, resumed, &stopped.stopped);
    CHECK(difference(resumed.losses, rest, 1e-5) == "");
    CHECK(difference(resumed.parameters, expected.parameters, 1e-5) == "");
  }
}
