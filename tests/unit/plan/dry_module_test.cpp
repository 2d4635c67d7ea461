// SPDX-License-Identifier: MIT
// Dry runs of users' modules, optimizers and strategies.
#include <torch/torch.h>

#include "examples/custom_strategy/local_sgd.h"
#include "tessera/model/adapters.h"
#include "tessera/model/callable.h"
#include "tessera/optim/elementwise.h"
#include "tessera/plan/dry_step.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

namespace nn = torch::nn;

constexpr int64_t kIn = 8, kHidden = 32, kOut = 3, kRows = 6;
constexpr int64_t kNumel = kIn * kHidden + kHidden + kHidden * kOut + kOut;

nn::Sequential net() {
  return nn::Sequential(nn::Linear(kIn, kHidden), nn::Tanh(), nn::Linear(kHidden, kOut));
}

at::Tensor loss(const at::Tensor& scores, const MicroBatch& batch) {
  return nn::functional::cross_entropy(scores, batch.labels);
}

MicroBatch rows() {
  return make_micro_batch(torch::ones({kRows, kIn}), torch::arange(kRows) % kOut,
                          {{"other", torch::ones({kRows, kHidden})}});
}

constexpr ModuleOptions kMean{.reduction = LossReduction::kMean};

// One tensor in and two out, and the reverse.
struct Halves : nn::Module {
  Halves() { first = register_module("first", nn::Linear(kIn, kHidden)); }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const at::Tensor y = first->forward(x);
    return {y, y.tanh().narrow(1, 0, 2)};
  }
  nn::Linear first{nullptr};
};
struct Joined : nn::Module {
  Joined() { last = register_module("last", nn::Linear(kHidden, kOut)); }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    return last->forward(a * b.sum());
  }
  nn::Linear last{nullptr};
};

// Reads a value.
struct Reader : nn::Module {
  Reader() { layer = register_module("layer", nn::Linear(kIn, kOut)); }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = layer->forward(x);
    return y.abs().amax().item<float>() > 10 ? y / 10 : y;
  }
  nn::Linear layer{nullptr};
};

DryStep step_of(const ModelSpec& model, const ParallelConfig& parallel, const MeshExtents& mesh,
                const MeshCoordinate& coordinate) {
  return {.model = model,
          .parallel = parallel,
          .mesh = mesh,
          .coordinate = coordinate,
          .micro_batches = {rows(), rows()}};
}

// Operations of a real step.
struct Real {
  CommunicationLedger communication;
  StrategyMemory state;
};
std::vector<Real> real(const ModelSpec& model, const ParallelConfig& parallel,
                       const MeshExtents& mesh) {
  const int ranks = mesh.pipeline * mesh.data * mesh.tensor;
  std::vector<Real> seen(static_cast<size_t>(ranks));
  test::run_ranks(ranks, [&](Communicator& world) {
    const auto ledger = std::make_shared<CommunicationLedger>();
    const auto recorded = record_operations(world.split(0, world.rank()), ledger);
    const DeviceMesh device_mesh(*recorded, mesh);
    const auto strategy = make_strategy(parallel, device_mesh);
    strategy->attach(model, {.device = world.device()}, make_adamw({}));
    const std::vector<MicroBatch> batches{rows(), rows()};
    for (int i = 0; i < 2; ++i) {
      ledger->clear();
      strategy->forward_backward(batches);
      strategy->grad_norm_squared();
      strategy->optimizer_step(1e-3);
    }
    seen[static_cast<size_t>(world.rank())] = {*ledger, strategy->memory()};
  });
  return seen;
}

void compare(const ModelSpec& model, const ParallelConfig& parallel, const MeshExtents& mesh) {
  const std::vector<Real> seen = real(model, parallel, mesh);
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    INFO(parallel.strategy << ", rank " << rank);
    const StepLedger dry =
        dry_step(step_of(model, parallel, mesh, coordinate_of(static_cast<int>(rank), mesh)));
    const auto texts = [](const CommunicationLedger& ledger) {
      std::vector<std::string> all;
      for (const LedgerOperation& each : ledger.operations) all.push_back(text_of(each));
      return all;
    };
    CHECK(texts(dry.communication) == texts(seen[rank].communication));
    const StrategyMemory &said = dry.state, &held = seen[rank].state;
    CHECK(said.parameter_bytes == held.parameter_bytes);
    CHECK(said.gradient_bytes == held.gradient_bytes);
    CHECK(said.optimizer_bytes == held.optimizer_bytes);
    CHECK(said.buffer_bytes == held.buffer_bytes);
    CHECK(dry.device.bytes > dry.device.lasting);
  }
}

std::string error_of(const ModelSpec& model) {
  try {
    dry_step(step_of(model, {}, {}, {}));
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("torch modules run dry as they run, and are left as they were") {
  const nn::Sequential layers = net();
  const at::Tensor before = torch::nn::utils::parameters_to_vector(layers->parameters()).clone();
  const ModelSpec sequential = from_sequential(layers, loss, kMean);
  const ModelSpec one = from_module(layers, loss, kMean);
  const ModelSpec made = from_module([] { return net(); }, loss, kMean);
  const ModelSpec callable = from_callable(
      layers,
      [](nn::SequentialImpl& module, const MicroBatch& batch) {
        return loss(module.forward(batch.input_ids), batch);
      },
      kMean);
  const ModelSpec parts = chain({block_of([] { return std::make_shared<Halves>(); }),
                                 block_of([] { return std::make_shared<Joined>(); })},
                                loss, kMean);
  for (const ModelSpec& model : {sequential, one, callable, made, parts}) {
    compare(model, {.strategy = "zero2"}, {.data = 2});
  }
  compare(sequential, {.strategy = "zero3"}, {.data = 2});
  compare(sequential, {.strategy = "ddp"}, {.pipeline = 2});
  compare(parts, {.strategy = "fsdp"}, {.pipeline = 2});
  CHECK(torch::nn::utils::parameters_to_vector(layers->parameters()).equal(before));
}

TEST_CASE("a dry step of a module counts its state and the optimizer's") {
  const StepLedger dry =
      dry_step(step_of(from_sequential(net(), loss, kMean), {.strategy = "single"}, {}, {}));
  const int64_t parameters = dry.state.parameter_bytes;
  CHECK(parameters >= 4 * kNumel);  // flat buffers are padded
  CHECK(dry.state.gradient_bytes == parameters);
  CHECK(dry.state.optimizer_bytes == 2 * parameters);
  DryStep own = step_of(from_sequential(net(), loss, kMean), {.strategy = "single"}, {}, {});
  own.optimizer = make_elementwise("Momentum", {"momentum"},
                                   [](const ElementwiseStep& step, std::vector<at::Tensor>& state) {
                                     state[0] = state[0] * 0.9 + step.gradient;
                                     return step.parameter - step.learning_rate * state[0];
                                   });
  CHECK(dry_step(own).state.optimizer_bytes == parameters);
}

TEST_CASE("LibTorch's layers run dry") {
  const at::Tensor image = torch::zeros({2, 4, 8, 8}), row = torch::zeros({2, 16}),
                   words = torch::zeros({2, 8}, torch::kLong), sequence = torch::zeros({2, 8, 16});
  const auto runs = [](const char* what, const at::Tensor& input, nn::Sequential net) {
    INFO(what);
    const auto sum = [](const at::Tensor& output, const MicroBatch& batch) {
      return output.flatten(1).mean(1).mul(batch.labels).square().mean();
    };
    const ModuleOptions options{.running_statistics_of_rank = 0, .reduction = LossReduction::kMean};
    const MicroBatch batch = make_micro_batch(input, torch::zeros({2}));
    for (const char* strategy : {"single", "zero3"}) {
      CHECK_NOTHROW(dry_step({.model = from_sequential(net, sum, options),
                              .parallel = {.strategy = strategy},
                              .mesh = {.data = *strategy == 'z' ? 2 : 1},
                              .micro_batches = {batch, batch}}));
    }
  };
  runs("Conv1d", torch::zeros({2, 4, 8}), nn::Sequential(nn::Conv1d(4, 6, 3)));
  runs("Conv2d", image, nn::Sequential(nn::Conv2d(4, 6, 3), nn::ReLU()));
  runs("ConvTranspose2d", image, nn::Sequential(nn::ConvTranspose2d(4, 6, 2)));
  runs("Conv3d", torch::zeros({2, 1, 4, 4, 4}), nn::Sequential(nn::Conv3d(1, 2, 3)));
  runs("BatchNorm2d", image, nn::Sequential(nn::Conv2d(4, 6, 3), nn::BatchNorm2d(6)));
  runs("GroupNorm", image, nn::Sequential(nn::Conv2d(4, 6, 3), nn::GroupNorm(2, 6)));
  runs("LayerNorm", row, nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({16}))));
  runs("MaxPool2d", image, nn::Sequential(nn::Conv2d(4, 6, 3), nn::MaxPool2d(2)));
  runs("AvgPool2d", image, nn::Sequential(nn::Conv2d(4, 6, 3), nn::AvgPool2d(2)));
  runs("AdaptiveAvgPool2d", image,
       nn::Sequential(nn::Conv2d(4, 6, 3),
                      nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({1, 1}))));
  runs("Upsample", image,
       nn::Sequential(nn::Conv2d(4, 6, 3),
                      nn::Upsample(nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2}))));
  runs("Embedding", words, nn::Sequential(nn::Embedding(32, 16), nn::Linear(16, 4)));
  runs("Dropout", row, nn::Sequential(nn::Linear(16, 16), nn::Dropout(0.1), nn::Softmax(1)));
  runs("activations", row,
       nn::Sequential(nn::Linear(16, 16), nn::GELU(), nn::SiLU(), nn::ELU(), nn::LeakyReLU(),
                      nn::Sigmoid(), nn::Softplus(), nn::Hardtanh(), nn::LogSoftmax(1)));
  runs("PReLU", row, nn::Sequential(nn::PReLU()));
  runs("PixelShuffle", image,
       nn::Sequential(nn::Conv2d(4, 4, 3), nn::PixelShuffle(2), nn::Flatten()));
}

TEST_CASE("a block that reads a value is refused with the operator") {
  const std::string error =
      error_of(from_module([] { return std::make_shared<Reader>(); }, loss, kMean));
  CHECK_THAT(error,
             test::contains("forward() cannot run without memory, as in a dry step: ") &&
                 test::contains("aten::_local_scalar_dense, which item() calls: attempted to run "
                                "this operator with Meta tensors. It must") &&
                 test::contains("It must not read values of tensors"));
}

TEST_CASE("a strategy of one's own runs dry") {
  DryStep step = step_of(from_sequential(net(), loss, kMean), {}, {.data = 4}, {.data = 1});
  step.strategy = [](const DeviceMesh& mesh) {
    return std::make_unique<LocalSgd>(ParallelConfig{}, mesh.axis(Axis::kData), /*interval=*/1);
  };
  const StepLedger dry = dry_step(step);
  CHECK(dry.state.optimizer_bytes >= 8 * kNumel);
  const auto averages = std::ranges::count_if(dry.communication.operations, [](const auto& each) {
    return each.kind == OperationKind::kAllReduce && each.numel >= kHidden * kOut;
  });
  CHECK(averages == 2);  // for both layers, over parameters only
}
