// SPDX-License-Identifier: MIT
// The family "chain": parts of chain() that pass a pair of tensors and see a named tensor of the
// micro-batch, with matrices tied by tie(). Or all of it in one from_callable() step.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>

#include <tuple>

#include "lib/testing/fuzz_blocks.h"
#include "tessera/model/callable.h"

namespace tessera::testing {
namespace {

constexpr const char* kChain = "MTX";
constexpr int64_t kScores = 4;
constexpr double kAuxiliary = 0.125;

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

// Part by index: the first, the blocks of the case, the last. owner: the part whose matrix it uses.
struct Part {
  char kind = 'M';
  size_t owner = 0;
  bool frozen = false;
};
std::vector<Part> parts_of(const FuzzCase& c) {
  std::vector<Part> parts{{'F', 0}};
  size_t last = 0;  // last part with a square matrix
  for (const BlockToken& token : parse_blocks(c.blocks, kChain)) {
    const size_t place = parts.size();
    parts.push_back({token.kind, token.kind == 'T' ? last : place, token.frozen});
    if (token.kind == 'M') last = place;
  }
  parts.push_back({'O', parts.size()});
  return parts;
}

// Computation of a part, in its weights' dtype.
TwoTensors first(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias,
                 const at::Tensor& shift) {
  const at::Tensor y = at::linear(x + shift, matrix, bias);
  return {y, at::tanh(y)};
}
TwoTensors middle(const at::Tensor& x, const at::Tensor& memory, const at::Tensor& matrix,
                  const at::Tensor& bias, const at::Tensor& shift) {
  return {x + at::tanh(at::linear(x, matrix, bias)), memory * 0.5 + shift};
}
TwoTensors last(const at::Tensor& x, const at::Tensor& memory, const at::Tensor& matrix,
                const at::Tensor& bias) {
  return {at::linear(x + memory, matrix, bias), memory};
}
// {sum of the loss, correct predictions}; training adds a sum over the supervised rows' second
// tensor.
at::Tensor sums_of(const at::Tensor& scores, const at::Tensor& memory, const MicroBatch& batch,
                   bool training) {
  at::Tensor sums = loss_and_correct(scores, batch.labels);
  if (!training) return sums;
  const at::Tensor exact = memory.to(sums.scalar_type());
  const at::Tensor counted = batch.labels.ne(kIgnoredLabel).to(sums.scalar_type()).unsqueeze(1);
  const at::Tensor more = (exact.square() * counted).sum() * kAuxiliary;
  return sums + at::stack({more, at::zeros_like(more)});
}
LossResult loss_of_sums(const at::Tensor& sums) {
  return {.loss = sums[0], .counters = sums.narrow(0, 1, 1)};
}

struct SwapImpl : torch::nn::Cloneable<SwapImpl> {  // no parameters
  void reset() override {}
};
TORCH_MODULE(Swap);

struct WholeImpl : torch::nn::Module {
  explicit WholeImpl(std::vector<Part> all, int64_t width) : parts(std::move(all)) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t columns = parts[i].kind == 'O' ? kScores : width;
      linears.push_back(parts[i].kind == 'X' ? torch::nn::Linear(nullptr)
                                             : torch::nn::Linear(width, columns));
      if (linears[i].is_empty()) continue;
      if (parts[i].owner != i) linears[i]->weight = linears[parts[i].owner]->weight;
      register_module(std::to_string(i), linears[i]);
    }
  }
  std::vector<Part> parts;
  std::vector<torch::nn::Linear> linears;
};
TORCH_MODULE(Whole);

Whole make_whole(const FuzzCase& c) {
  Whole whole(parts_of(c), c.hidden);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(c.seed);
  for (size_t i = 0; i < whole->parts.size(); ++i) {
    if (whole->linears[i].is_empty()) continue;
    for (at::Tensor p : {whole->linears[i]->weight, whole->linears[i]->bias}) {
      draw_parameter(p, generator);
      if (whole->parts[i].frozen && whole->parts[i].owner == i) p.set_requires_grad(false);
    }
  }
  return whole;
}

// linear(i) -> (matrix, bias) of part i; shift in the weights' dtype.
template <typename Weights>
at::Tensor run_parts(const std::vector<Part>& parts, const Weights& weights, const at::Tensor& x,
                     const at::Tensor& shift, const MicroBatch& batch, bool training) {
  TwoTensors passed{x, {}};
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [y, memory] = passed;
    if (parts[i].kind == 'X') {
      passed = TwoTensors{memory, y};
      continue;
    }
    const auto [matrix, bias] = weights(i);
    passed = parts[i].kind == 'F'   ? first(y, matrix, bias, shift)
             : parts[i].kind == 'O' ? last(y, memory, matrix, bias)
                                    : middle(y, memory, matrix, bias, shift);
  }
  return sums_of(std::get<0>(passed), std::get<1>(passed), batch, training);
}

ModelSpec as_one_step(const FuzzCase& c) {
  return from_callable(
      with_values([c] { return make_whole(c); }, make_whole(c)),
      [](WholeImpl& net, const MicroBatch& batch, const BlockContext& context) {
        const auto weights = [&](size_t i) {
          return std::pair(net.linears[i]->weight, net.linears[i]->bias);
        };
        return loss_of_sums(run_parts(net.parts, weights, batch.input_ids, batch.get("shift"),
                                      batch, context.training));
      },
      {.counters = 1});
}

ModelSpec as_chain(const FuzzCase& c) {
  const Whole whole = make_whole(c);
  using T = at::Tensor;
  std::vector<ModelSpec> parts;
  std::vector<std::pair<size_t, size_t>> tied;
  for (size_t i = 0; i < whole->parts.size(); ++i) {
    const Part& part = whole->parts[i];
    if (part.kind == 'X') {
      parts.push_back(
          block_of(Swap(), [](SwapImpl&, const T& x, const T& memory, const MicroBatch&) {
            return TwoTensors{memory, x};
          }));
      continue;
    }
    torch::nn::Linear own(c.hidden, part.kind == 'O' ? kScores : c.hidden);
    {
      const at::NoGradGuard no_grad;
      own->weight.copy_(whole->linears[i]->weight);
      own->bias.copy_(whole->linears[i]->bias);
    }
    own->weight.set_requires_grad(whole->linears[i]->weight.requires_grad());
    own->bias.set_requires_grad(whole->linears[i]->bias.requires_grad());
    if (part.owner != i) tied.emplace_back(part.owner, i);
    using Linear = torch::nn::LinearImpl;
    if (part.kind == 'F') {
      parts.push_back(block_of(own, [](Linear& m, const MicroBatch& batch) {
        return first(batch.input_ids, m.weight, m.bias, batch.get("shift"));
      }));
    } else if (part.kind == 'O') {
      parts.push_back(block_of(own, [](Linear& m, const T& x, const T& memory, const MicroBatch&) {
        return last(x, memory, m.weight, m.bias);
      }));
    } else {
      parts.push_back(
          block_of(own, [](Linear& m, const T& x, const T& memory, const MicroBatch& batch) {
            return middle(x, memory, m.weight, m.bias, batch.get("shift"));
          }));
    }
  }
  ModelSpec model = chain(
      std::move(parts),
      [](const T& scores, const T& memory, const MicroBatch& batch, const BlockContext& context) {
        return loss_of_sums(sums_of(scores, memory, batch, context.training));
      },
      {.counters = 1});
  for (const auto& [owner, alias] : tied) {
    model =
        tie(std::move(model), std::to_string(owner) + ".weight", std::to_string(alias) + ".weight");
  }
  return model;
}

FuzzModel build_chain(const FuzzCase& c) {
  FuzzModel result;
  result.model = c.whole_module ? as_one_step(c) : as_chain(c);
  result.forward = [c, parts = parts_of(c)](const std::map<std::string, at::Tensor>& all,
                                            const MicroBatch& batch, const BlockContext& context) {
    const auto weights = [&](size_t i) {
      const std::string prefix = c.whole_module ? "module." : "";
      return std::pair(all.at(prefix + std::to_string(parts[i].owner) + ".weight"),
                       all.at(prefix + std::to_string(i) + ".bias"));
    };
    const at::ScalarType dtype = weights(0).first.scalar_type();
    return run_parts(parts, weights, batch.input_ids.to(dtype), batch.get("shift").to(dtype), batch,
                     context.training);
  };
  result.gives_scores = !c.whole_module;
  result.batch = [c](int64_t rows, int64_t, uint64_t seed) {
    MicroBatch batch = labelled_rows(rows, c.hidden, kScores, seed);
    batch.extra["shift"] = labelled_rows(rows, c.hidden, kScores, seed + 1).input_ids;
    return batch;
  };
  return result;
}

void draw_chain(std::mt19937_64& random, FuzzCase& c) {
  c.hidden = draw_from(random, {3, 4, 8, 12});
  c.whole_module = chance(random, 25);
  std::vector<BlockToken> blocks;
  const auto count = static_cast<int64_t>(random() % 6);
  const std::string kinds = "MMMTX";
  for (int64_t i = 0; i < count; ++i) {
    BlockToken block{.kind = kinds[random() % kinds.size()]};
    block.frozen = block.kind == 'M' && chance(random, 15);
    blocks.push_back(block);
  }
  c.blocks = to_text(blocks);
}

}  // namespace

FuzzFamily chain_family() {
  FuzzFamily family{.draw = draw_chain, .build = build_chain};
  family.smaller = [](const FuzzCase& c) { return smaller_blocks(c, kChain); };
  return family;
}

}  // namespace tessera::testing
