// SPDX-License-Identifier: MIT
// The family "modules": torch modules through from_sequential() and from_module(), compared with
// the same layers as plain functions.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules.h>

#include "lib/testing/fuzz_blocks.h"
#include "tessera/core/error.h"
#include "tessera/model/adapters.h"

namespace tessera::testing {
namespace {

constexpr const char* kModules = "LRGNDWASB";
constexpr int64_t kClasses = 4;
constexpr double kDropout = 0.25;
constexpr double kSlope = 0.25;  // applying it twice shows

// One square matrix registered under two names.
struct TwiceImpl : torch::nn::Cloneable<TwiceImpl> {
  explicit TwiceImpl(int64_t columns) : width(columns) { reset(); }
  void reset() override {
    matrix = register_parameter("a", at::zeros({width, width}));
    register_parameter("b", matrix);
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::linear(at::tanh(at::linear(x, matrix)), matrix);
  }
  int64_t width;
  at::Tensor matrix;
};
TORCH_MODULE(Twice);

// A child of the Sequential: its kind and the owner of its weights.
struct Layer {
  char kind = 'L';
  int64_t width = 0;  // of its output
  size_t owner = 0;   // first child with these parameters
  bool frozen = false, first_frozen = false;
};

// A: repeats the last layer with parameters if widths allow, else GELU.
std::vector<Layer> layers_of(const FuzzCase& c) {
  std::vector<Layer> layers;
  int64_t width = c.hidden;
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t square = kNone;  // a layer that a later A may repeat
  for (const BlockToken& token : parse_blocks(c.blocks, kModules)) {
    const size_t place = layers.size();
    Layer layer{token.kind, width, place, token.frozen, token.first_frozen};
    if (token.kind == 'A') {
      layer.kind = square != kNone ? layers[square].kind : 'G';
      layer.owner = square != kNone ? square : place;
    } else if (token.kind == 'L') {
      layer.width = std::max<int64_t>(token.width, 1);
      square = layer.width == width ? place : kNone;
    } else if (token.kind == 'N' || token.kind == 'W') {
      square = place;
    }
    width = layer.width;
    layers.push_back(layer);
  }
  layers.push_back({.kind = 'L', .width = kClasses, .owner = layers.size()});
  return layers;
}

torch::nn::Sequential make_sequential(const FuzzCase& c, uint64_t seed) {
  torch::nn::Sequential sequential;
  int64_t width = c.hidden;
  for (const Layer& layer : layers_of(c)) {
    if (layer.owner != sequential->size()) {
      sequential->push_back(*(sequential->begin() + static_cast<ptrdiff_t>(layer.owner)));
      continue;
    }
    switch (layer.kind) {
      case 'L':
        sequential->push_back(torch::nn::Linear(width, layer.width));
        break;
      case 'R':
        sequential->push_back(torch::nn::LeakyReLU(
            torch::nn::LeakyReLUOptions().negative_slope(kSlope).inplace(true)));
        break;
      case 'G':
        sequential->push_back(torch::nn::GELU());
        break;
      case 'N':
        sequential->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
        break;
      case 'D':
        sequential->push_back(torch::nn::Dropout(kDropout));
        break;
      case 'S':
      case 'B':
        sequential->push_back(
            torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(width).affine(layer.kind == 'B')));
        break;
      default:
        sequential->push_back(Twice(width));
        break;
    }
    bool first = true;
    for (at::Tensor& parameter : sequential->ptr(sequential->size() - 1)->parameters()) {
      parameter.set_requires_grad(!layer.frozen && !(layer.first_frozen && first));
      first = false;
    }
    width = layer.width;
  }
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (at::Tensor& parameter : sequential->parameters()) draw_parameter(parameter, generator);
  return sequential;
}

// As BatchNorm1d; a training pass updates the running statistics.
at::Tensor batch_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const std::function<at::Tensor(const std::string&)>& buffer, bool training) {
  if (training) buffer("num_batches_tracked").add_(1);
  return at::batch_norm(x, weight, bias, buffer("running_mean"), buffer("running_var"), training,
                        /*momentum=*/0.1, /*eps=*/1e-5, /*cudnn_enabled=*/false);
}

// Dropout with factors in the model's dtype, from the default generator.
at::Tensor dropped(const at::Tensor& x, at::ScalarType dtype) {
  const at::Tensor factors = at::dropout(at::ones(x.sizes(), dtype), kDropout, /*train=*/true);
  return x * factors.to(x.scalar_type());
}

void restart_default_generator(uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

PlainForward plain_modules(const FuzzCase& c) {
  return [c, layers = layers_of(c)](const std::map<std::string, at::Tensor>& all,
                                    const MicroBatch& batch, const BlockContext& context) {
    const auto weight = [&](const Layer& layer, const std::string& name) {
      const std::string child = std::to_string(layer.owner);
      return all.at(c.whole_module ? "module." + child + "." + name : child + "." + name);
    };
    const at::ScalarType dtype = weight(layers.back(), "weight").scalar_type();
    at::ScalarType of_model = c.whole_module ? c.parallel.precision.parameter : at::kFloat;
    at::Tensor x = c.whole_module ? batch.input_ids.to(dtype) : batch.input_ids;
    if (c.whole_module) restart_default_generator(block_seed(context.seed, 0));
    for (size_t i = 0; i < layers.size(); ++i) {
      const Layer& layer = layers[i];
      if (std::string("LNWSB").find(layer.kind) != std::string::npos) {
        of_model = c.parallel.precision.parameter;
        x = x.to(dtype);
      }
      switch (layer.kind) {
        case 'L':
          x = at::linear(x, weight(layer, "weight"), weight(layer, "bias"));
          break;
        case 'R':
          x = at::leaky_relu(x, kSlope);
          break;
        case 'G':
          x = at::gelu(x);
          break;
        case 'N':
          x = at::layer_norm(x, {layer.width}, weight(layer, "weight"), weight(layer, "bias"));
          break;
        case 'S':
        case 'B': {
          const bool affine = layer.kind == 'B';
          const auto buffer = [&](const std::string& name) { return weight(layer, name); };
          x = batch_norm(x, affine ? weight(layer, "weight") : at::Tensor(),
                         affine ? weight(layer, "bias") : at::Tensor(), buffer, context.training);
          break;
        }
        case 'D':
          if (!c.whole_module) restart_default_generator(block_seed(context.seed, i));
          if (context.training) x = dropped(x, of_model);
          break;
        default: {
          const at::Tensor matrix = weight(layer, "a");
          x = at::linear(at::tanh(at::linear(x, matrix)), matrix);
        }
      }
    }
    return loss_and_correct(x, batch.labels);
  };
}

FuzzModel build_modules(const FuzzCase& c) {
  const bool statistics = has_running_statistics(c);
  check(!statistics || c.parallel.precision.parameter == at::kFloat, ErrorCode::kInvalidArgument,
        "fuzz: running statistics need fp32 weights");
  FuzzModel result;
  result.seeds = std::make_shared<SeedLog>();
  const LossFunction loss = [seeds = result.seeds](const at::Tensor& output,
                                                   const MicroBatch& batch,
                                                   const BlockContext& context) {
    if (context.training) seeds->add(batch, context.seed);
    return loss_and_correct(output, batch.labels);
  };
  const auto model = [c, loss, statistics](uint64_t seed) {
    const torch::nn::Sequential sequential = make_sequential(c, seed);
    ModuleOptions options{.counters = 1};
    if (statistics) options.running_statistics_of_rank = 0;
    return c.whole_module ? from_module(sequential, loss, options)
                          : from_sequential(sequential, loss, options);
  };
  result.model = model(c.seed);
  if (c.own_weights) {
    result.of_rank = [c, model](int data_rank) {
      return model(c.seed + static_cast<uint64_t>(data_rank));
    };
  }
  result.forward = plain_modules(c);
  result.same_terms = true;
  result.gives_scores = true;
  const auto layers = layers_of(c);
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].owner != i) result.same_terms = false;
  }
  // Statistics of two rows are degenerate: their gradients are rounding noise.
  result.batch = [c, more = statistics ? 3 : 0](int64_t rows, int64_t, uint64_t seed) {
    return labelled_rows(rows + more, c.hidden, kClasses, seed);
  };
  return result;
}

void draw_modules(std::mt19937_64& random, FuzzCase& c) {
  c.hidden = draw_from(random, {3, 4, 8, 12});
  c.own_weights = chance(random, 25);
  c.whole_module = chance(random, 20);
  std::vector<BlockToken> blocks;
  if (chance(random, 20)) {  // statistics before all trained layers
    if (chance(random, 50)) blocks.push_back({.kind = 'L', .width = 6, .frozen = true});
    blocks.push_back({.kind = chance(random, 50) ? 'S' : 'B'});
    blocks.back().frozen = blocks.back().kind == 'B';
  }
  const auto count = static_cast<int64_t>(random() % 7);
  for (int64_t i = 0; i < count; ++i) {
    const std::string kinds = "LLLLRGNDDWASB";
    BlockToken block{.kind = kinds[random() % kinds.size()]};
    // LibTorch itself has no gradient for the first of two in-place ReLUs.
    if (block.kind == 'R' && !blocks.empty() && blocks.back().kind == 'R') block.kind = 'G';
    if (block.kind == 'L') block.width = draw_from(random, {1, 3, 6, 10, 16, c.hidden});
    if (block.kind == 'A' && chance(random, 80)) {  // a layer that A may repeat
      const int64_t width = draw_from(random, {3, 6, 10});
      blocks.insert(blocks.end(), 2, {.kind = 'L', .width = width});
    }
    if (block.kind == 'L' || block.kind == 'N' || block.kind == 'B') {
      block.frozen = chance(random, 15);
      block.first_frozen = !block.frozen && chance(random, 10);
    }
    blocks.push_back(block);
  }
  c.blocks = to_text(blocks);
}

}  // namespace

FuzzFamily modules_family() {
  FuzzFamily family{.draw = draw_modules, .build = build_modules};
  family.smaller = [](const FuzzCase& c) { return smaller_blocks(c, kModules); };
  return family;
}

FuzzFamilies fuzz_families() {
  return {{"toy", toy_family()}, {"modules", modules_family()}, {"chain", chain_family()}};
}

}  // namespace tessera::testing
