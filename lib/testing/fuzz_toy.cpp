// SPDX-License-Identifier: MIT
// The family "toy": hand-written blocks with every feature a block may have.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "lib/testing/fuzz_blocks.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera::testing {
namespace {

constexpr const char* kToyBlocks = "LQPDTUBCV";
constexpr int64_t kTiedWidth = 5;

// Parameters of one block, drawn unsharded and cut over the tensor axis.
class Weights {
 public:
  Weights(const BuildContext& context, size_t index)
      : axis_(context),
        device_(context.device),
        generator_(at::make_generator<at::CPUGeneratorImpl>(block_seed(context.seed, index))) {}

  void freeze(const BlockToken& token) {
    all_frozen_ = token.frozen;
    first_frozen_ = token.first_frozen;
  }
  at::Tensor draw(const std::string& name, at::IntArrayRef shape, double scale, double centre = 0,
                  int cut = -1) {
    const at::Tensor whole = (at::randn(shape, generator_) * scale + centre).to(device_);
    Parameter parameter = cut_parameter(name, whole, shape.size() > 1, {.dim = cut}, axis_);
    parameter.lazy_zero_gradient = shape.size() > 1;
    if (all_frozen_ || (first_frozen_ && parameters_.empty())) {
      parameter.tensor.set_requires_grad(false);
    }
    parameters_.push_back(parameter);
    return parameter.tensor;
  }
  at::Tensor alias(const std::string& name, at::IntArrayRef shape) {
    parameters_.push_back(cut_parameter(name, tied_placeholder(shape, device_), true, {}, axis_));
    parameters_.back().lazy_zero_gradient = true;
    return parameters_.back().tensor;
  }
  const TensorAxis& axis() const { return axis_; }
  std::vector<Parameter> take() { return std::move(parameters_); }

 private:
  TensorAxis axis_;
  at::Device device_;
  at::Generator generator_;
  bool all_frozen_ = false, first_frozen_ = false;
  std::vector<Parameter> parameters_;
};

class ToyBlock : public Block {
 public:
  explicit ToyBlock(Weights weights) : axis_(weights.axis()), parameters_(weights.take()) {}
  std::vector<Parameter> parameters() override { return parameters_; }

 protected:
  const at::Tensor& p(size_t i) const { return parameters_[i].tensor; }
  TensorAxis axis_;
  std::vector<Parameter> parameters_;
};

class Embedding final : public ToyBlock {
 public:
  Embedding(Weights weights, double column_scale)
      : ToyBlock(std::move(weights)), column_scale_(column_scale) {}
  at::Tensor forward(const at::Tensor&, const MicroBatch& batch, const BlockContext&) override {
    const at::Tensor hidden = at::embedding(p(0), batch.input_ids);
    if (column_scale_ == 1) return hidden;
    const at::Tensor scales = at::ones({hidden.size(2)}, hidden.options().requires_grad(false));
    scales.slice(0, 1, std::nullopt, 2).fill_(column_scale_);
    return hidden * scales;
  }

 private:
  double column_scale_;
};

class Last final : public Head {
 public:
  Last(Weights weights, std::shared_ptr<SeedLog> seeds)
      : parameters_(weights.take()), seeds_(std::move(seeds)) {}
  std::vector<Parameter> parameters() override { return parameters_; }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    if (context.training) seeds_->add(batch, context.seed);
    return loss_and_correct(logits(hidden, batch, context), batch.labels);
  }
  at::Tensor logits(const at::Tensor& hidden, const MicroBatch&, const BlockContext&) override {
    return at::linear(hidden, parameters_[0].tensor, parameters_[1].tensor);
  }

 private:
  std::vector<Parameter> parameters_;
  std::shared_ptr<SeedLog> seeds_;
};

class Body final : public ToyBlock {
 public:
  Body(BlockToken token, size_t index, Weights weights, at::Tensor buffer)
      : ToyBlock(std::move(weights)), token_(token), index_(index), buffer_(std::move(buffer)) {}
  std::vector<Buffer> buffers() override {
    return buffer_.defined() ? std::vector<Buffer>{{"factor", buffer_}} : std::vector<Buffer>{};
  }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    switch (token_.kind) {
      case 'L': {
        const at::Tensor normed = at::layer_norm(hidden, {hidden.size(-1)}, p(0), p(1));
        return hidden + at::linear(at::gelu(at::linear(normed, p(2), p(3))), p(4));
      }
      case 'Q':
        return at::tanh(hidden * p(0) + p(1).square().mean());
      case 'D': {
        if (!context.training) return hidden;
        auto generator = at::make_generator<at::CPUGeneratorImpl>(block_seed(context.seed, index_));
        const at::Tensor kept = at::rand(hidden.sizes(), generator, at::kFloat).ge(0.25);
        return hidden * kept.to(hidden.options()).mul(4.0 / 3);
      }
      case 'T':
        return hidden + at::matmul(at::tanh(at::linear(hidden, p(0))), p(0));
      case 'B':
        return hidden * buffer_.to(hidden.scalar_type());
      case 'C':
        return sharded(hidden);
      case 'V': {
        if (batch.labels.clamp_min(0).sum().item<int64_t>() % 2 != 0) return at::tanh(hidden);
        return hidden + at::matmul(at::tanh(at::linear(hidden, p(0))), p(0)) + p(1);
      }
      default:  // P, U
        return at::tanh(hidden);
    }
  }

 private:
  at::Tensor sharded(const at::Tensor& hidden) const {
    if (axis_.size() == 1) {
      return hidden + at::linear(at::tanh(at::linear(hidden, p(0), p(1))), p(2), p(3));
    }
    const at::Tensor inner =
        at::tanh(column_parallel_linear(hidden, p(0), p(1), hidden.sizes().slice(0, 2), axis_));
    return hidden + row_parallel_linear(inner, p(2), p(3), axis_);
  }

  BlockToken token_;
  size_t index_;
  at::Tensor buffer_;
};

std::unique_ptr<Block> build_body(const FuzzCase& c, const BlockToken& token, size_t index,
                                  bool tied, const BuildContext& context) {
  Weights weights(context, index);
  weights.freeze(token);
  const int64_t h = c.hidden, width = std::max<int64_t>(token.width, 1);
  at::Tensor buffer;
  switch (token.kind) {
    case 'L':
      weights.draw("norm.weight", {h}, 0.2, 1);
      weights.draw("norm.bias", {h}, 0.1);
      weights.draw("up.weight", {width, h}, 0.4);
      weights.draw("up.bias", {width}, 0.1);
      weights.draw("down.weight", {h, width}, 0.4);
      break;
    case 'Q':
      weights.draw("scale", {h}, 0.3, 1);
      weights.draw("offset", {width}, 0.3);
      break;
    case 'T':
      if (tied) {
        weights.alias("matrix", {width, h});
      } else {
        weights.draw("matrix", {kTiedWidth, h}, 0.4);
      }
      break;
    case 'U':
      weights.draw("unused", {width}, 0.3);
      break;
    case 'V':
      weights.draw("matrix", {width, h}, 0.4);
      weights.draw("offset", {h}, 0.1);
      break;
    case 'B':
      buffer = (at::arange(h, at::kFloat) * 0.1 + 0.7).to(context.device);
      break;
    case 'C':
      weights.draw("up.weight", {width, h}, 0.4, 0, 0);
      weights.draw("up.bias", {width}, 0.1, 0, 0);
      weights.draw("down.weight", {h, width}, 0.4, 0, 1);
      weights.draw("down.bias", {h}, 0.1);
      break;
    default:
      break;
  }
  return std::make_unique<Body>(token, index, std::move(weights), buffer);
}

FuzzModel build_toy(const FuzzCase& c) {
  FuzzModel result;
  result.seeds = std::make_shared<SeedLog>();
  result.gives_scores = true;
  ModelSpec& model = result.model;
  model.name = "toy";
  const auto tokens = parse_blocks(c.blocks, kToyBlocks);
  const bool owner_first = c.tie != "last";
  const size_t head = tokens.size() + 1;
  model.blocks.push_back({"embedding", [c](const BuildContext& context) {
                            Weights weights(context, 0);
                            weights.freeze({.frozen = c.frozen == "first"});
                            if (c.tie == "last") {
                              weights.alias("weight", {c.vocabulary, c.hidden});
                            } else {
                              weights.draw("weight", {c.vocabulary, c.hidden}, 0.5);
                            }
                            return std::make_unique<Embedding>(std::move(weights), c.column_scale);
                          }});
  int64_t divisor = 0;
  std::string last_matrix;
  int64_t last_width = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    BlockToken token = tokens[i];
    const std::string name = "b" + std::to_string(i);
    const bool tied = token.kind == 'T' && !last_matrix.empty();
    if (tied) {
      token.width = last_width;
      model.tied.push_back({last_matrix, "up.weight", name, "matrix"});
    }
    if (token.kind == 'L') {
      last_matrix = name;
      last_width = std::max<int64_t>(token.width, 1);
    }
    if (token.kind == 'C') divisor = divisor == 0 ? token.width : std::gcd(divisor, token.width);
    model.blocks.push_back({name, [c, token, i, tied](const BuildContext& context) {
                              return build_body(c, token, i + 1, tied, context);
                            }});
  }
  model.tensor_divisor = divisor;
  model.blocks.push_back({"head", [c, head, seeds = result.seeds](const BuildContext& context) {
                            Weights weights(context, head);
                            weights.freeze({.frozen = c.frozen == "last"});
                            if (c.tie == "first") {
                              weights.alias("weight", {c.vocabulary, c.hidden});
                            } else {
                              weights.draw("weight", {c.vocabulary, c.hidden}, 0.5);
                            }
                            weights.draw("bias", {c.vocabulary}, 0.1);
                            return std::make_unique<Last>(std::move(weights), seeds);
                          }});
  if (c.tie != "none") {
    const std::string owner = owner_first ? "embedding" : "head";
    model.tied.push_back({owner, "weight", owner_first ? "head" : "embedding", "weight"});
  }
  if (c.refuse == "weights" || c.refuse == "layout") {
    result.of_rank = [model, c](int data_rank) {
      ModelSpec other = model;
      const auto first = model.blocks.front().build;
      FuzzCase wider = c;
      wider.vocabulary += c.refuse == "layout" ? 1 : 0;
      const auto wider_first =
          build_toy(data_rank == 0 || c.refuse == "weights" ? c : wider).model.blocks.front().build;
      other.blocks.front().build = [=](BuildContext context) {
        if (c.refuse == "weights") context.seed += static_cast<uint64_t>(data_rank);
        return wider_first(context);
      };
      return other;
    };
  }
  result.batch = [c](int64_t rows, int64_t length, uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    MicroBatch batch;
    batch.input_ids = at::randint(c.vocabulary, {rows, length}, generator, at::kLong);
    batch.labels = at::randint(c.vocabulary, {rows, length}, generator, at::kLong);
    batch.labels.masked_fill_(at::rand({rows, length}, generator).lt(0.25), kIgnoredLabel);
    return batch;
  };
  return result;
}

void draw_toy(std::mt19937_64& random, FuzzCase& c) {
  c.vocabulary = draw_from(random, {5, 7, 11, 16, 29, 37});
  c.hidden = draw_from(random, {3, 4, 8, 12, 16});
  c.tie = draw_from(random, {0, 1}) == 0 ? "none" : chance(random, 60) ? "first" : "last";
  if (chance(random, 10)) c.frozen = chance(random, 50) ? "first" : "last";
  std::vector<BlockToken> blocks;
  const auto below = [&](uint64_t end) { return static_cast<int64_t>(random() % end); };
  const int64_t count = chance(random, 60)   ? below(7)
                        : chance(random, 80) ? 5 + below(6)
                                             : 11 + below(11);
  for (int64_t i = 0; i < count; ++i) {
    const std::string kinds = "LLLLLQPDTUBCCVV";
    BlockToken block{.kind = kinds[random() % kinds.size()]};
    const bool has_width = std::string("LQUCV").find(block.kind) != std::string::npos;
    if (has_width) block.width = draw_from(random, {1, 3, 6, 10, 24});
    if (block.kind == 'C') block.width = draw_from(random, {4, 12, 12});
    if (chance(random, 10)) block.frozen = true;
    if (!block.frozen && chance(random, 8)) block.first_frozen = true;
    if (block.kind == 'T') block.frozen = block.first_frozen = false;
    blocks.push_back(block);
  }
  c.blocks = to_text(blocks);
}

}  // namespace

FuzzFamily toy_family() {
  FuzzFamily family{.draw = draw_toy, .build = build_toy, .tensor_axis = true};
  family.smaller = [](const FuzzCase& c) { return smaller_blocks(c, kToyBlocks); };
  return family;
}

}  // namespace tessera::testing
