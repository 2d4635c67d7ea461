// SPDX-License-Identifier: MIT
// The hand-scheduled block with weights of GPT-2 and Llama against the composed one; BLOOM's is in
// bloom_block_*_test.cpp.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "lib/ops/fp8.h"
#include "tessera/core/lazy_zero.h"
#include "tests/support/ranks.hpp"
#include "tests/unit/models/decoder_cases.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::require;

namespace {

constexpr int64_t kBatch = 2, kSequence = 7;
const DecoderSizes kSizes;

struct Result {
  at::Tensor output, dhidden;
  Tensors gradients;
};

enum class Lie { kApart, kSideBySide, kWithGaps, kBlank, kWithoutGradients };

// Except for the last two, gradients hold partial sums, as inside a strategy.
Result run(Version version, const DecoderCase& test, const at::Tensor& hidden, Lie lie,
           const at::Tensor& mask, const PackedRows& packed) {
  Tensors mine;
  for (const at::Tensor& w : test.tensors()) {
    mine.push_back(leaf(w.to(hidden.scalar_type())));
    if (lie == Lie::kApart) mine.back().mutable_grad() = at::full_like(mine.back(), 0.5);
  }
  if (lie == Lie::kSideBySide) lay_side_by_side(mine);
  if (lie == Lie::kWithGaps) lay_side_by_side(mine, 8);
  if (lie == Lie::kBlank) {
    lay_side_by_side(mine);
    for (const at::Tensor& w : mine) declare_lazy_zero({w.mutable_grad().fill_(NAN)});
  }
  const at::Tensor input = leaf(hidden);
  const at::Tensor output =
      run_decoder(version, input, test.with(mine), test.options, {}, mask, packed);
  torch::autograd::backward(
      {output}, {at::linspace(-1, 1, output.numel(), output.options()).view_as(output)});
  Result result{output, input.grad(), {}};
  for (const at::Tensor& w : mine) {
    const bool started_empty = lie == Lie::kBlank || lie == Lie::kWithoutGradients;
    result.gradients.push_back(started_empty ? w.grad() : w.grad() - 0.5);
  }
  return result;
}

void compare(const DecoderCase& test, at::ScalarType type, const at::Tensor& mask,
             const PackedRows& packed, double tolerance) {
  const at::Tensor hidden = at::randn({kBatch, kSequence, kSizes.hidden}).to(type);
  const Result b =
      run(Version::kComposed, test, hidden.to(at::kDouble), Lie::kWithoutGradients, mask, packed);
  for (const Lie lie :
       {Lie::kApart, Lie::kSideBySide, Lie::kWithGaps, Lie::kBlank, Lie::kWithoutGradients}) {
    INFO(test.name << " " << at::toString(type) << " lie " << int(lie)
                   << (mask.defined() ? " masked" : "") << (packed.defined() ? " packed" : ""));
    const Result a = run(Version::kFused, test, hidden, lie, mask, packed);
    CHECK(relative_error(a.output, b.output) < tolerance);
    CHECK(relative_error(a.dhidden, b.dhidden) < tolerance);
    for (size_t i = 0; i < a.gradients.size(); ++i) {
      INFO("gradient of weight " << i);
      CHECK(relative_error(a.gradients[i], b.gradients[i]) < tolerance);
    }
  }
}

// In every dtype, and with all kinds of rows.
void compare_everywhere(const DecoderCase& test) {
  const at::Tensor mask =
      at::arange(kSequence).unsqueeze(0).ge(at::tensor(std::vector<int64_t>{2, 0}).unsqueeze(1));
  compare(test, at::kFloat, {}, {}, 1e-5);
  compare(test, at::kDouble, mask, {}, 1e-11);
  compare(test, at::kDouble, {}, make_packed_rows({3, 4, 5, 1, 1}, kSequence), 1e-11);
  const bool adapted = !test.weights.qkv.adapters.empty();  // more values are rounded
  compare(test, at::kBFloat16, {}, {}, adapted ? 5e-2 : 3e-2);
}

// Weights in fp64, cut, run on the axis and gathered.
void run_part(Communicator& comm, Version version, const DecoderCase& whole, bool sequence_parallel,
              const at::Tensor& hidden, const Result& expected, const at::Tensor& gradient,
              double tolerance = 1e-10) {
  const BuildContext context{.tensor = &comm, .sequence_parallel = sequence_parallel};
  const TensorAxis axis(context);
  std::vector<Parameter> parameters;
  Tensors mine;
  const Tensors tensors = whole.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    parameters.push_back(cut_parameter("w", tensors[i].clone(), true, whole.cuts[i], axis));
    mine.push_back(parameters.back().tensor);
  }
  DecoderBlockOptions options = whole.options;
  options.axis = axis;
  options.attention.heads /= axis.size();
  options.attention.key_heads /= axis.size();
  options.attention.dropout.first_head = axis.rank() * options.attention.heads;
  for (ops::Dropout& dropout : options.dropout) {
    if (!sequence_parallel) continue;
    dropout.first = axis.rank() * axis.rows_per_rank(kBatch * kSequence) * hidden.size(2);
  }
  const auto own = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    return sequence_parallel ? own_tokens(x, axis) : x;
  };
  const auto require_close = [&](const at::Tensor& a, const at::Tensor& b,
                                 const std::string& what) {
    require(relative_error(a.detach(), b) < tolerance, what, " differs");
  };
  const at::Tensor input = leaf(own(hidden));
  const at::Tensor output =
      run_decoder(version, input, whole.with(mine), options, {kBatch, kSequence});
  const at::Tensor real = own(at::ones({kBatch, kSequence, 1}, at::kDouble));
  // Padding rows hold biases.
  require_close(output * real, own(expected.output.detach()), "output");
  torch::autograd::backward({output}, {own(gradient)});
  require_close(input.grad(), own(expected.dhidden), "gradient of hidden");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < mine.size(); ++i) {
    at::Tensor sum = mine[i].grad().clone();
    if (parameters[i].placement.partial()) comm.all_reduce(sum).wait();
    require_close(gather_whole(sum, parameters[i].placement), expected.gradients[i],
                  "gradient of weight " + std::to_string(i));
  }
}

}  // namespace

TEST_CASE("the fused block with experts is the composed one, values and gradients") {
  at::manual_seed(57);
  const at::Tensor mask =
      at::arange(kSequence).unsqueeze(0).ge(at::tensor(std::vector<int64_t>{2, 0}).unsqueeze(1));
  for (const int64_t used : {1, 2, 3}) {
    const DecoderCase test = expert_case(kSizes, 5, used);
    compare(test, at::kFloat, {}, {}, 1e-5);
    compare(test, at::kDouble, mask, {}, 1e-11);
    compare(test, at::kDouble, {}, make_packed_rows({3, 4, 5, 1, 1}, kSequence), 1e-11);
  }
  // Roundings choose other experts where probabilities are close, but not among all of them.
  compare(expert_case(kSizes, 3, 3), at::kBFloat16, {}, {}, 3e-2);
  for (const UpAdapters kind : {UpAdapters::kGateAndUp, UpAdapters::kUpAlone, UpAdapters::kJoint}) {
    const DecoderCase adapted = with_expert_adapters(expert_case(kSizes, 3, 3), kind);
    compare(adapted, at::kFloat, {}, {}, 1e-5);
    compare(adapted, at::kDouble, {}, make_packed_rows({3, 4, 5, 1, 1}, kSequence), 1e-11);
    compare(adapted, at::kBFloat16, {}, {}, 5e-2);
  }
  for (const int64_t window : {0, 3}) {
    DecoderCase test = sink_case(kSizes, 4);
    test.options.attention.window = window;
    compare(test, at::kFloat, {}, {}, 1e-5);
    compare(test, at::kDouble, {}, {}, 1e-11);
    compare(test, at::kDouble, {}, make_packed_rows({3, 4, 5, 1, 1}, kSequence), 1e-11);
  }
  compare(shared_case(kSizes, 5, 2), at::kFloat, {}, {}, 1e-5);
  DecoderCase shared = with_shared_adapters(shared_case(kSizes, 5, 3), 0.3);
  compare(shared, at::kDouble, {}, make_packed_rows({3, 4, 5, 1, 1}, kSequence), 1e-11);
  shared.options.dropout = {ops::Dropout{0.2, 5}, ops::Dropout{0.3, 6}};
  shared.options.save_norm_outputs = true;
  compare(shared, at::kDouble, {}, {}, 1e-11);
  DecoderCase drops = with_expert_adapters(expert_case(kSizes, 4, 2), UpAdapters::kGateAndUp, 0.3);
  drops.options.dropout = {ops::Dropout{0.2, 5}, ops::Dropout{0.3, 6}};
  compare(drops, at::kDouble, {}, {}, 1e-11);
}

TEST_CASE("the fused blocks of GPT-2 and Llama are the composed ones, values and gradients") {
  at::manual_seed(24);
  for (const DecoderCase& test : decoder_cases(kSizes)) compare_everywhere(test);
}

TEST_CASE("the fused blocks drop what the composed ones drop, forwards and backwards") {
  at::manual_seed(27);
  for (const DecoderCase& whole : decoder_cases(kSizes)) {
    DecoderCase test = with_dropout(whole, /*attention=*/true);
    compare_everywhere(test);
    test.options.residual_post_layernorm = true;
    compare(test, at::kDouble, {}, {}, 1e-11);
    const at::Tensor hidden = at::randn({kBatch, kSequence, kSizes.hidden});
    const Result on = run(Version::kFused, test, hidden, Lie::kWithoutGradients, {}, {});
    const auto differs = [&](const auto& change) {
      DecoderCase other = test;
      change(other.options);
      return !run(Version::kFused, other, hidden, Lie::kWithoutGradients, {}, {})
                  .output.allclose(on.output);
    };
    CHECK(differs([](DecoderBlockOptions& o) { o.dropout[0] = {}; }));
    CHECK(differs([](DecoderBlockOptions& o) { o.dropout[1].seed = 5; }));
    CHECK(differs([](DecoderBlockOptions& o) { o.attention.dropout.seed = 5; }));
    CHECK_FALSE(differs([](DecoderBlockOptions&) {}));
  }
}

TEST_CASE("the fused blocks without gradients, and with weights frozen among joint ones") {
  at::manual_seed(25);
  for (const DecoderCase& test : decoder_cases(kSizes)) {
    INFO(test.name);
    const at::Tensor hidden = at::randn({kBatch, kSequence, kSizes.hidden}, at::kDouble);
    Tensors mine, all;
    for (const at::Tensor& w : test.tensors()) {
      mine.push_back(leaf(w.to(at::kDouble)));
      all.push_back(leaf(mine.back()));
    }
    lay_side_by_side(all);
    const auto forward = [&](const Tensors& weights) {
      return run_decoder(Version::kFused, hidden, test.with(weights), test.options, {});
    };
    const at::Tensor expected = forward(all);
    torch::autograd::backward({expected.sum()});
    {
      const at::NoGradGuard guard;
      CHECK(forward(all).equal(expected));
      CHECK_FALSE(forward(all).requires_grad());
    }
    lay_side_by_side(mine);
    const size_t frozen = test.options.gated ? 2 : 4;
    mine[frozen].mutable_grad() = at::Tensor();
    mine[frozen].set_requires_grad(false);
    torch::autograd::backward({forward(mine).sum()});
    for (size_t i = 0; i < mine.size(); ++i) {
      INFO("weight " << i);
      CHECK(mine[i].grad().defined() == (i != frozen));
      if (i != frozen) CHECK(relative_error(mine[i].grad(), all[i].grad()) < 1e-12);
    }
  }
}

TEST_CASE("a micro-batch without rows leaves the gradients of the fused blocks as they are") {
  for (const DecoderCase& test : decoder_cases(kSizes)) {
    INFO(test.name);
    const at::Tensor hidden = at::empty({0, kSequence, kSizes.hidden});
    const Result result = run(Version::kFused, test, hidden, Lie::kSideBySide, {}, {});
    CHECK(result.output.sizes() == hidden.sizes());
    CHECK(result.dhidden.sizes() == hidden.sizes());
    for (const at::Tensor& gradient : result.gradients) CHECK(gradient.eq(0).all().item<bool>());
  }
}

TEST_CASE("the blocks of GPT-2 and Llama shared by ranks equal the whole ones") {
  at::manual_seed(26);
  DecoderSizes sizes;
  sizes.key_heads = 4, sizes.heads = 8, sizes.d = 4;
  std::vector<DecoderCase> cases = decoder_cases(sizes);
  for (const int i : {0, 2}) {
    cases.push_back(with_dropout(cases[static_cast<size_t>(i)], /*attention=*/true));
  }
  DecoderCase experts = expert_case(sizes, 5, 2);
  cases.push_back(experts);
  experts.weights.query_norm = at::rand({sizes.d}) + 0.5;  // by head
  experts.weights.key_norm = at::rand({sizes.d}) + 0.5;
  cases.push_back(experts);
  cases.push_back(with_dropout(experts, /*attention=*/true));
  cases.push_back(with_expert_adapters(experts, UpAdapters::kGateAndUp, 0.3));
  cases.push_back(with_expert_adapters(experts, UpAdapters::kUpAlone));
  cases.push_back(with_expert_adapters(experts, UpAdapters::kJoint));
  cases.push_back(with_dropout(shared_case(sizes, 5, 2), /*attention=*/false));
  cases.push_back(with_shared_adapters(shared_case(sizes, 5, 3), 0.3));
  for (DecoderCase test : cases) {
    Tensors exact;
    for (const at::Tensor& w : test.tensors()) exact.push_back(w.to(at::kDouble));
    test.weights = test.with(exact);
    const at::Tensor hidden = at::randn({kBatch, kSequence, sizes.hidden}, at::kDouble);
    const Result expected = run(Version::kComposed, test, hidden, Lie::kWithoutGradients, {}, {});
    const at::Tensor gradient =
        at::linspace(-1, 1, hidden.numel(), hidden.options()).view_as(hidden);
    for (const bool sequence_parallel : {false, true}) {
      for (const int ranks : {2, 4}) {
        for (const Version version : {Version::kComposed, Version::kFused}) {
          INFO(test.name << " ranks " << ranks << " sequence parallel " << sequence_parallel
                         << " fused " << (version == Version::kFused));
          CHECK_NOTHROW(test::run_ranks(ranks, [&](Communicator& comm) {
            run_part(comm, version, test, sequence_parallel, hidden, expected, gradient);
          }));
        }
      }
    }
  }
}

// In fp64 between products, so that both versions round the same values.
TEST_CASE("the fused blocks in 8 bits are the composed ones, and near those in the compute dtype") {
  at::manual_seed(28);
  for (DecoderCase test : decoder_cases(kSizes)) {
    const at::Tensor hidden = at::randn({kBatch, kSequence, kSizes.hidden}, at::kDouble);
    const Result exact = run(Version::kComposed, test, hidden, Lie::kWithoutGradients, {}, {});
    for (const Fp8 scaling : {Fp8::kTensorwise, Fp8::kRowwise}) {
      test.options.fp8 = scaling;
      compare(test, at::kDouble, {}, {}, 1e-6);
      compare(test, at::kDouble, {}, make_packed_rows({3, 4, 5, 1, 1}, kSequence), 1e-6);
      const auto error = [](const at::Tensor& a, const at::Tensor& b) {
        return relative_error(a.detach(), b.detach());
      };
      for (const Version version : {Version::kFused, Version::kComposed}) {
        test.options.fp8_weights = std::make_shared<ops::Fp8Weights>();
        const Result result = run(version, test, hidden, Lie::kApart, {}, {});
        INFO(test.name << " scaling " << int(scaling));
        CHECK(error(result.output, exact.output) > 1e-3);
        CHECK(error(result.output, exact.output) < 0.1);
        CHECK(error(result.dhidden, exact.dhidden) < 0.2);
        for (size_t i = 0; i < result.gradients.size(); ++i) {
          INFO("gradient of weight " << i);
          CHECK(error(result.gradients[i], exact.gradients[i]) < 0.3);
        }
      }
      test.options.fp8_weights = nullptr;
    }
  }
}

// A product with a weight of zeros is exact in 8 bits, so that it shows which layers have them.
TEST_CASE("fp8_layers names the layers of a block that are in 8 bits") {
  struct Layer {
    bool Fp8Layers::*has;
    ProductWeights DecoderBlockWeights::*weights;
  };
  const Layer layers[] = {{&Fp8Layers::qkv, &DecoderBlockWeights::qkv},
                          {&Fp8Layers::o, &DecoderBlockWeights::dense},
                          {&Fp8Layers::up, &DecoderBlockWeights::up},
                          {&Fp8Layers::down, &DecoderBlockWeights::down}};
  for (const Layer& layer : layers) {
    at::manual_seed(31);
    for (DecoderCase test : decoder_cases(kSizes)) {
      const at::Tensor hidden = at::randn({kBatch, kSequence, kSizes.hidden}, at::kDouble);
      const auto output = [&](Version version) {
        return run(version, test, hidden, Lie::kWithoutGradients, {}, {}).output;
      };
      for (const Fp8 scaling : {Fp8::kTensorwise, Fp8::kRowwise}) {
        INFO(test.name << " scaling " << int(scaling) << " layer " << (&layer - layers));
        test.options.fp8 = scaling;
        test.options.fp8_layers = {false, false, false, false};
        test.options.fp8_layers.*layer.has = true;
        compare(test, at::kDouble, {}, {}, 1e-6);
      }
      for (at::Tensor& weight : (test.weights.*layer.weights).weights) {
        weight = at::zeros_like(weight);
      }
      for (const Version version : {Version::kFused, Version::kComposed}) {
        INFO(test.name << " fused " << (version == Version::kFused) << " layer "
                       << (&layer - layers));
        const at::Tensor eight = output(version);
        test.options.fp8 = Fp8::kOff;
        const at::Tensor exact = output(version);
        CHECK(relative_error(eight, exact) < 1e-12);
        test.options.fp8 = Fp8::kTensorwise;
        test.options.fp8_layers = {};
        test.options.fp8_layers.*layer.has = false;
        CHECK(relative_error(output(version), exact) > 1e-4);
        test.options.fp8_layers = {false, false, false, false};
        test.options.fp8_layers.*layer.has = true;
      }
    }
  }
}

TEST_CASE("fused blocks that keep inputs in 8 bits are the composed ones") {
  at::manual_seed(30);
  for (DecoderCase test : decoder_cases(kSizes)) {
    test.options.save_norm_outputs = true;
    for (const Fp8 scaling : {Fp8::kTensorwise, Fp8::kRowwise}) {
      test.options.fp8 = scaling;
      INFO(test.name << " scaling " << int(scaling));
      compare(test, at::kDouble, {}, {}, 1e-6);
      compare(with_dropout(test, /*attention=*/false), at::kDouble, {}, {}, 1e-6);
      compare(test, at::kDouble, {}, make_packed_rows({3, 4, 5, 1, 1}, kSequence), 1e-6);
    }
  }
}

TEST_CASE("ranks that share a block in 8 bits agree on scales, so that parts equal the whole") {
  at::manual_seed(29);
  DecoderSizes sizes;
  sizes.key_heads = 4, sizes.heads = 8, sizes.d = 4;
  for (DecoderCase test : decoder_cases(sizes)) {
    Tensors exact;
    for (const at::Tensor& w : test.tensors()) exact.push_back(w.to(at::kDouble));
    test.weights = test.with(exact);
    const at::Tensor hidden = at::randn({kBatch, kSequence, sizes.hidden}, at::kDouble);
    const at::Tensor gradient =
        at::linspace(-1, 1, hidden.numel(), hidden.options()).view_as(hidden);
    for (const Fp8 scaling : {Fp8::kTensorwise, Fp8::kRowwise}) {
      test.options.fp8 = scaling;
      const Result expected = run(Version::kComposed, test, hidden, Lie::kWithoutGradients, {}, {});
      for (const bool sequence_parallel : {false, true}) {
        for (const Version version : {Version::kComposed, Version::kFused}) {
          test.options.save_norm_outputs = sequence_parallel;
          INFO(test.name << " scaling " << int(scaling) << " sequence parallel "
                         << sequence_parallel << " fused " << (version == Version::kFused));
          CHECK_NOTHROW(test::run_ranks(2, [&](Communicator& comm) {
            run_part(comm, version, test, sequence_parallel, hidden, expected, gradient, 1e-5);
          }));
        }
      }
    }
  }
}
