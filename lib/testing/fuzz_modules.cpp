// The family "modules": torch modules through from_sequential() and from_module().
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules.h>

#include "lib/testing/fuzz_blocks.h"
#include "tessera/core/error.h"
#include "tessera/model/adapters.h"

namespace tessera::testing {
namespace {

constexpr const char* kKinds = "LRGNDW";
constexpr int64_t kClasses = 4;

// One square matrix under two names.
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

torch::nn::Sequential make_sequential(const FuzzCase& c, uint64_t seed) {
  torch::nn::Sequential sequential;
  int64_t width = c.hidden;
  const auto freeze = [](const BlockToken& token, torch::nn::Module& module) {
    bool first = true;
    for (at::Tensor& parameter : module.parameters()) {
      parameter.set_requires_grad(!token.frozen && !(token.first_frozen && first));
      first = false;
    }
  };
  for (const BlockToken& token : parse_blocks(c.blocks, kKinds)) {
    switch (token.kind) {
      case 'L': {
        torch::nn::Linear linear(width, std::max<int64_t>(token.width, 1));
        freeze(token, *linear);
        sequential->push_back(linear);
        width = std::max<int64_t>(token.width, 1);
        break;
      }
      case 'R':
        sequential->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(true)));
        break;
      case 'G':
        sequential->push_back(torch::nn::GELU());
        break;
      case 'N': {
        torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({width}));
        freeze(token, *norm);
        sequential->push_back(norm);
        break;
      }
      case 'D':
        sequential->push_back(torch::nn::Dropout(0.25));
        break;
      case 'W':
        sequential->push_back(Twice(width));
        break;
      default:
        break;
    }
  }
  sequential->push_back(torch::nn::Linear(width, kClasses));
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : sequential->parameters()) {
    parameter.copy_(at::randn(parameter.sizes(), generator) * 0.4 +
                    (parameter.dim() == 1 ? 0.2 : 0));
  }
  return sequential;
}

FuzzModel build(const FuzzCase& c) {
  FuzzModel result;
  result.seeds = std::make_shared<SeedLog>();
  const LossFunction loss = [seeds = result.seeds](const at::Tensor& output,
                                                   const MicroBatch& batch) {
    if (batch.training) seeds->add(batch);
    return loss_and_correct(output, batch.labels);
  };
  result.model = from_sequential(make_sequential(c, c.seed), loss);
  if (c.own_weights) {
    result.of_rank = [c, loss](int data_rank) {
      return from_sequential(make_sequential(c, c.seed + static_cast<uint64_t>(data_rank)), loss);
    };
  }
  result.batch = [c](int64_t rows, int64_t, uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    MicroBatch batch;
    batch.input_ids = at::randn({rows, c.hidden}, generator);
    batch.labels = at::randint(kClasses, {rows}, generator, at::kLong);
    batch.labels.masked_fill_(at::rand({rows}, generator).lt(0.25), kIgnoredLabel);
    return batch;
  };
  return result;
}

void draw(std::mt19937_64& random, FuzzCase& c) {
  c.hidden = draw_from(random, {3, 4, 8, 12});
  c.own_weights = chance(random, 25);
  std::vector<BlockToken> blocks;
  const auto count = static_cast<int64_t>(random() % 7);
  for (int64_t i = 0; i < count; ++i) {
    const std::string kinds = "LLLLRGNDDW";
    BlockToken block{.kind = kinds[random() % kinds.size()]};
    // LibTorch itself has no gradient for the first of two.
    if (block.kind == 'R' && !blocks.empty() && blocks.back().kind == 'R') block.kind = 'G';
    if (block.kind == 'L') block.width = draw_from(random, {1, 3, 6, 10, 16});
    if (block.kind == 'L' || block.kind == 'N') {
      block.frozen = chance(random, 15);
      block.first_frozen = !block.frozen && chance(random, 10);
    }
    blocks.push_back(block);
  }
  c.blocks = to_text(blocks);
}

}  // namespace

FuzzFamily modules_family() {
  FuzzFamily family{.draw = draw, .build = build};
  family.smaller = [](const FuzzCase& c) { return smaller_blocks(c, kKinds); };
  return family;
}

FuzzFamilies fuzz_families() { return {{"toy", toy_family()}, {"modules", modules_family()}}; }

}  // namespace tessera::testing
