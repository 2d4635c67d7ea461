// SPDX-License-Identifier: MIT
// Every tensor-parallel layer against the unsharded operation: values and all gradients.
#include "tessera/model/tensor_parallel.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/ops/functional.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::require;
using tessera::test::require_error;
using tessera::test::run_ranks;

namespace {

at::Tensor draw(at::IntArrayRef shape, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::kFloat);
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().set_requires_grad(true); }

void require_close(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  require(actual.defined(), what, " is undefined");
  require(actual.sizes() == expected.sizes(), what, " has shape ", actual.sizes(), " instead of ",
          expected.sizes());
  const double error = (actual - expected).norm().item<double>();
  require(error <= 1e-5 * expected.norm().item<double>() + 1e-12, what, " differs by ", error);
}

BuildContext context_of(Communicator& comm, bool sequence_parallel) {
  return {.tensor = &comm, .sequence_parallel = sequence_parallel};
}

// Prepares gradients as a strategy does: defined from the start, to be accumulated.
void prepare(const std::vector<Parameter>& parameters) {
  for (const auto& p : parameters) p.tensor.mutable_grad() = at::ones_like(p.tensor);
}

// A parameter's gradient, gathered, without its initial ones.
at::Tensor whole_gradient(const Parameter& parameter, Communicator& comm) {
  const at::Tensor own = parameter.tensor.grad() - 1;
  if (parameter.placement.partial()) comm.all_reduce(own).wait();
  return gather_whole(own, parameter.placement);
}

// One rank's tokens of a whole [rows, n] tensor, padded with zeros.
at::Tensor part_of(const at::Tensor& whole, const TensorAxis& axis) {
  const at::Tensor rows = whole.flatten(0, -2);
  const int64_t size = axis.rows_per_rank(rows.size(0));
  const at::Tensor padded = at::constant_pad_nd(rows, {0, 0, 0, size * axis.size() - rows.size(0)});
  return padded.narrow(0, axis.rank() * size, size).clone();
}

struct Toy {
  at::Tensor x = draw({2, 5, 6}, 1), up = draw({12, 6}, 2), up_bias = draw({12}, 3);
  at::Tensor down = draw({6, 12}, 4), down_bias = draw({6}, 5), norm = draw({6}, 6);
  at::Tensor gradient = draw({2, 5, 6}, 7);
};

}  // namespace

TEST_CASE("column and row parallel layers make a feed-forward block, also on own tokens") {
  const Toy toy;
  const at::Tensor x = leaf(toy.x), norm = leaf(toy.norm), up = leaf(toy.up),
                   up_bias = leaf(toy.up_bias), down = leaf(toy.down),
                   down_bias = leaf(toy.down_bias);
  const at::Tensor inner = ops::gelu_tanh(at::linear(x * norm, up, up_bias));
  const at::Tensor expected = x + at::linear(inner, down, down_bias);
  torch::autograd::backward({expected}, {toy.gradient});
  for (int ranks : {1, 2, 3, 4}) {
    for (bool sequence_parallel : {false, true}) {
      for (bool direct : {false, true}) {
        run_ranks(ranks, [&](Communicator& comm) {
          const BuildContext context = context_of(comm, sequence_parallel);
          const TensorAxis axis(context);
          const bool own = axis.sequence_parallel();
          const ColumnParallelLinear first(context, "up", toy.up, toy.up_bias);
          const RowParallelLinear second(context, "down", toy.down, toy.down_bias);
          const Parameter scale = cut_parameter("norm", toy.norm, false, {}, axis);
          const size_t held = ranks > 1 ? 1 : 0;
          require(scale.placement.replicas.size() == held &&
                      second.parameters()[1].placement.replicas.size() == held &&
                      first.parameters()[0].placement.replicas.empty(),
                  "norms and row-parallel biases are held by all, parts alone");
          require(scale.placement.partial() == own, "own tokens give parts of gradients");
          std::vector<Parameter> all{scale};
          for (const auto& p : first.parameters()) all.push_back(p);
          for (const auto& p : second.parameters()) all.push_back(p);
          if (direct) prepare(all);
          const at::Tensor hidden = leaf(own ? part_of(toy.x, axis) : toy.x);
          const at::Tensor scaled = hidden * scale.tensor;
          const at::Tensor y =
              hidden + second.forward(ops::gelu_tanh(first.forward(scaled, {2, 5})));
          const auto mine = [&](const at::Tensor& whole) {
            return own ? part_of(whole, axis) : whole;
          };
          // Padding rows hold biases; only real rows count.
          const at::Tensor real = mine(at::ones({2, 5, 1}));
          require_close(y * real, mine(expected.detach()), "output");
          torch::autograd::backward({y}, {mine(toy.gradient)});
          require_close(hidden.grad(), mine(x.grad()), "input gradient");
          if (!direct) {
            for (const auto& p : all) p.tensor.mutable_grad() = p.tensor.grad() + 1;
          }
          const std::vector<at::Tensor> wanted{norm, up, up_bias, down, down_bias};
          for (size_t i = 0; i < all.size(); ++i) {
            require_close(whole_gradient(all[i], comm), wanted[i].grad(),
                          "gradient of " + all[i].name);
          }
        });
      }
    }
  }
}

TEST_CASE("parameters are cut in equal parts and joined again") {
  const at::Tensor fused = draw({12, 4}, 1), table = draw({7, 3}, 2);
  for (int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](Communicator& comm) {
      const TensorAxis axis(context_of(comm, false));
      for (const auto& [whole, cut] :
           {std::pair(fused, TensorCut{.dim = 0, .parts = 3}),
            std::pair(fused, TensorCut{.dim = 0}), std::pair(fused, TensorCut{.dim = 1}),
            std::pair(table, TensorCut{.dim = 0, .padded = true})}) {
        Parameter p = cut_parameter("p", whole, true, cut, axis);
        require(p.tensor.is_leaf() && p.tensor.requires_grad() && p.placement.replicas.empty(),
                "leaf");
        require(p.tensor.sizes() == at::IntArrayRef(cut_shape("p", whole.sizes(), cut, axis)),
                "shape");
        if (ranks == 1) {
          require(p.placement.shard.replicated() && p.tensor.equal(whole), "one rank holds all");
          continue;
        }
        p.tensor.mutable_grad() = p.tensor.detach() + 1;
        require_close(whole_gradient(p, comm), whole, "joined");
      }
      if (ranks == 2) {  // rows 0, 1 of each of the three parts of four
        const Parameter p = cut_parameter("p", fused, true, {.dim = 0, .parts = 3}, axis);
        require(p.tensor[2].equal(fused[4 + 2 * axis.rank()]), "second part");
      }
    });
  }
}

TEST_CASE("vocabulary: embedding and loss equal the whole ones") {
  constexpr int64_t kRows = 3, kSequence = 7, kHidden = 6, kVocabulary = 13;
  const at::Tensor table = draw({kVocabulary, kHidden}, 1);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(9);
  const at::Tensor ids = at::randint(kVocabulary, {kRows, kSequence}, generator, at::kLong);
  at::Tensor labels = at::randint(kVocabulary, {kRows, kSequence}, generator, at::kLong);
  labels.masked_fill_(at::rand({kRows, kSequence}, generator).lt(0.3), kIgnoredLabel);
  labels[0][0] = kVocabulary - 1;
  const at::Tensor ignored = labels.flatten().eq(kIgnoredLabel);
  const at::Tensor supervised =
      at::cat({ignored.logical_not().nonzero(), ignored.nonzero().narrow(0, 0, 1)}).flatten();
  const at::Tensor scale = at::scalar_tensor(0.37);

  const at::Tensor weight = leaf(table);
  const at::Tensor embedded = at::embedding(weight, ids) * 3;
  const at::Tensor loss =
      at::cross_entropy_loss(at::linear(embedded, weight).flatten(0, 1), labels.flatten(), {},
                             at::Reduction::Sum, kIgnoredLabel);
  torch::autograd::backward({loss}, {scale});

  for (int ranks : {1, 2, 3, 4}) {
    for (bool sequence_parallel : {false, true}) {
      for (int64_t chunk_rows : {4, 1024}) {
        for (bool given : {true, false}) {
          // The second time with supervised positions only, and one more at the end.
          const at::Tensor positions = given ? at::Tensor() : supervised;
          run_ranks(ranks, [&](Communicator& comm) {
            const BuildContext context = context_of(comm, sequence_parallel);
            const TensorAxis axis(context);
            const VocabParallelEmbedding embedding(context, "table", table);
            const Parameter& parameter = embedding.parameters()[0];
            prepare(embedding.parameters());
            const at::Tensor hidden = embedding.forward(ids);
            const LossTargets targets{
                .labels = labels, .positions = positions, .chunk_rows = chunk_rows};
            const at::Tensor result =
                vocab_parallel_cross_entropy(hidden * 3, parameter.tensor, targets,
                                             given ? scale : at::Tensor(), kVocabulary, axis);
            require_close(result, loss.detach(), "loss");
            torch::autograd::backward({result}, {scale});
            require_close(whole_gradient(parameter, comm), weight.grad(), "table gradient");
            if (ranks > 1 && axis.rank() == ranks - 1) {
              const int64_t filled = parameter.tensor.size(0) * ranks - kVocabulary;
              const at::Tensor gradient = parameter.tensor.grad() - 1;
              require(
                  gradient.narrow(0, gradient.size(0) - filled, filled).eq(0).all().item<bool>(),
                  "filling rows have a gradient");
            }
            at::NoGradGuard no_grad;
            require_close(vocab_parallel_cross_entropy(embedding.forward(ids) * 3, parameter.tensor,
                                                       targets, {}, kVocabulary, axis),
                          loss.detach(), "loss of an evaluation");
          });
        }
      }
    }
  }
}

TEST_CASE("large logits and ranks far apart lose nothing") {
  const at::Tensor hidden = at::eye(4) * 80;
  const at::Tensor table = at::cat({at::eye(4), at::eye(4) * -40});
  const at::Tensor labels = at::tensor({0, 5, 7, -100}, at::kLong);
  const at::Tensor expected = at::cross_entropy_loss(at::linear(hidden, table), labels, {},
                                                     at::Reduction::Sum, kIgnoredLabel);
  run_ranks(2, [&](Communicator& comm) {
    const TensorAxis axis(context_of(comm, false));
    const Parameter part = cut_parameter("t", table, true, {.dim = 0, .padded = true}, axis);
    const at::Tensor x = leaf(hidden);
    const at::Tensor loss = vocab_parallel_cross_entropy(x, part.tensor, {labels}, {}, 8, axis);
    require_close(loss, expected, "loss");
    torch::autograd::backward({loss}, {});
    require(x.grad().isfinite().all().item<bool>(), "gradient is not finite");
  });
}

TEST_CASE("tokens and columns travel between ranks and back") {
  const at::Tensor whole = draw({3, 5, 4}, 1), gradient = draw({3, 5, 4}, 2);
  run_ranks(2, [&](Communicator& comm) {
    const TensorAxis axis(context_of(comm, true));
    const double factor = axis.rank() + 1;
    {  // gathered for a layer that is computed in parts: gradients add up
      const at::Tensor own = leaf(part_of(whole, axis));
      const at::Tensor all = gather_tokens(own, {3, 5}, axis);
      require_close(all, whole, "gathered tokens");
      torch::autograd::backward({all}, {gradient * factor});
      require_close(own.grad(), part_of(gradient * 3, axis), "their gradient");
    }
    {  // gathered for a layer that every rank computes in full
      const at::Tensor own = leaf(part_of(whole, axis));
      torch::autograd::backward({gather_whole_tokens(own, {3, 5}, axis)}, {gradient});
      require_close(own.grad(), part_of(gradient, axis), "gradient of whole tokens");
    }
    {
      const at::Tensor part = leaf(whole * factor);
      const at::Tensor own = reduce_scatter_tokens(part, axis);
      require_close(own, part_of(whole * 3, axis), "reduced tokens");
      torch::autograd::backward({own}, {part_of(gradient, axis)});
      require_close(part.grad(), gradient, "their gradient");
    }
    {
      const at::Tensor all = leaf(whole);
      const at::Tensor own = own_tokens(all, axis);
      require_close(own, part_of(whole, axis), "own tokens");
      torch::autograd::backward({own}, {part_of(gradient, axis)});
      require_close(all.grad(), gradient, "their gradient");
    }
    {
      const at::Tensor all = draw({3, 5, 7}, 4), padded = at::constant_pad_nd(all, {0, 1});
      const at::Tensor own = leaf(padded.narrow(2, 4 * axis.rank(), 4));
      const at::Tensor joined = gather_columns(own, 7, axis);
      require_close(joined, all, "columns");
      torch::autograd::backward({joined}, {all * 2});
      require_close(own.grad(), padded.narrow(2, 4 * axis.rank(), 4) * 2, "their gradient");
    }
  });
}

TEST_CASE("what cannot be shared is refused with the numbers") {
  run_ranks(4, [&](Communicator& comm) {
    const BuildContext context = context_of(comm, true);
    const TensorAxis axis(context);
    const auto refused = [&](const std::string& part, const std::function<void()>& fn) {
      const std::string message = require_error(ErrorCode::kInvalidArgument, fn, part);
      require(message.find(part) != std::string::npos, message, " lacks ", part);
    };
    refused("parameter up.weight: dimension 0 with 10 elements cannot be shared by 4", [&] {
      ColumnParallelLinear(context, "up", draw({10, 4}, 1));
    });
    refused("parameter down.weight: dimension 1 with 6", [&] {
      RowParallelLinear(context, "down", draw({4, 6}, 1));
    });
    refused("3 equal parts of dimension 0 with 16", [&] {
      ColumnParallelLinear(context, "qkv", draw({16, 4}, 1), {}, 3);
    });
    refused("leave nothing for the last of 4", [&] {
      VocabParallelEmbedding(context, "table", draw({5, 2}, 1));
    });
    refused("pass micro_batch.input_ids.sizes()", [&] {
      ColumnParallelLinear(context, "up", draw({8, 4}, 1)).forward(draw({2, 4}, 2));
    });
    const VocabParallelEmbedding embedding(context, "table", draw({8, 2}, 1));
    refused("token id 8 is not in the vocabulary, expected 0 to 7", [&] {
      embedding.forward(at::full({1, 4}, 8, at::kLong));
    });
    refused("label -3 is not in the vocabulary", [&] {
      vocab_parallel_cross_entropy(draw({1, 2}, 1), embedding.parameters()[0].tensor,
                                   {at::full({1, 4}, -3, at::kLong)}, {}, 8, axis);
    });
  });
  ModelSpec model;
  model.name = "m";
  CHECK(tensor_parallel_problem(model, 1) == "");
  CHECK_THAT(tensor_parallel_problem(model, 2),
             test::contains("model m has no tensor-parallel layers"));
  model.tensor_divisor = 12;
  CHECK(tensor_parallel_problem(model, 4) == "");
  CHECK_THAT(tensor_parallel_problem(model, 5),
             test::contains("layers divide over 2, 3, 4, 6, 12"));
}
