// SPDX-License-Identifier: MIT
// Recomputed hand-scheduled blocks: attention's output taken from forward, no output formed twice,
// and the feed-forward in pieces of rows.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "lib/core/kept_tensors.h"
#include "tests/support/counting_allocator.h"
#include "tests/unit/models/decoder_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kRows = 2, kLength = 7;

struct Recomputed {
  at::Tensor output;  // of the forward that is repeated
  Tensors gradients;  // of hidden and the weights
};

// change: of what forward keeps.
Recomputed recompute(const DecoderCase& test, const DecoderBlockOptions& options,
                     const at::Tensor& hidden, const PackedRows& packed, bool keeps,
                     const std::function<void(KeptTensors&)>& change = {}) {
  Tensors mine;
  for (const at::Tensor& w : test.tensors()) {
    mine.push_back(leaf(w.to(hidden.scalar_type())));
    mine.back().mutable_grad() = at::full_like(mine.back(), 0.5);
  }
  const DecoderBlockWeights weights = test.with(mine);
  const auto kept = keeps ? std::make_shared<KeptTensors>() : nullptr;
  DecoderBlockOptions first = options, again = options;
  first.kept_tensors = again.kept_tensors = kept;
  again.recomputes = true;
  const at::Tensor input = leaf(hidden);
  Recomputed result;
  {
    const at::NoGradGuard no_grad;
    result.output = run_decoder(Version::kFused, input, weights, first, {}, {}, packed);
  }
  if (change) change(*kept);
  const at::Tensor output = run_decoder(Version::kFused, input, weights, again, {}, {}, packed);
  torch::autograd::backward(
      {output}, {at::linspace(-1, 1, output.numel(), output.options()).view_as(output)});
  result.gradients.push_back(input.grad());
  for (const at::Tensor& w : mine) result.gradients.push_back(w.grad());
  return result;
}

// Without recomputation.
Recomputed plain(const DecoderCase& test, const DecoderBlockOptions& options,
                 const at::Tensor& hidden, const PackedRows& packed) {
  Tensors mine;
  for (const at::Tensor& w : test.tensors()) {
    mine.push_back(leaf(w.to(hidden.scalar_type())));
    mine.back().mutable_grad() = at::full_like(mine.back(), 0.5);
  }
  const at::Tensor input = leaf(hidden);
  const at::Tensor output =
      run_decoder(Version::kFused, input, test.with(mine), options, {}, {}, packed);
  torch::autograd::backward(
      {output}, {at::linspace(-1, 1, output.numel(), output.options()).view_as(output)});
  Recomputed result{output.detach(), {input.grad()}};
  for (const at::Tensor& w : mine) result.gradients.push_back(w.grad());
  return result;
}

void check_equal(const Recomputed& actual, const Recomputed& expected, double tolerance) {
  CHECK(relative_error(actual.output, expected.output) <= tolerance);
  REQUIRE(actual.gradients.size() == expected.gradients.size());
  for (size_t i = 0; i < actual.gradients.size(); ++i) {
    INFO("gradient " << i);
    CHECK(relative_error(actual.gradients[i], expected.gradients[i]) <= tolerance);
  }
}

std::vector<DecoderCase> all_cases(const DecoderSizes& sizes) {
  std::vector<DecoderCase> all;
  for (const DecoderCase& test : decoder_cases(sizes)) {
    all.push_back(test);
    all.push_back(with_dropout(test, /*attention=*/true));
  }
  return all;
}

std::vector<PackedRows> packings() { return {{}, make_packed_rows({3, 4, 5, 1, 1}, 7)}; }

}  // namespace

TEST_CASE("a recomputed block has the bits of one that is not") {
  at::manual_seed(51);
  const DecoderSizes sizes;
  std::vector<DecoderCase> cases = all_cases(sizes);
  cases.push_back(with_expert_adapters(expert_case(sizes, 5, 2), UpAdapters::kGateAndUp, 0.3));
  cases.push_back(with_shared_adapters(shared_case(sizes, 5, 2), 0.3));
  for (const DecoderCase& test : cases) {
    for (const PackedRows& packed : packings()) {
      INFO(test.name << (packed.defined() ? ", packed" : ""));
      const at::Tensor hidden = at::randn({kRows, kLength, sizes.hidden}, at::kDouble);
      const Recomputed expected = plain(test, test.options, hidden, packed);
      check_equal(recompute(test, test.options, hidden, packed, /*keeps=*/false), expected, 0);
      check_equal(recompute(test, test.options, hidden, packed, /*keeps=*/true), expected, 0);
    }
  }
}

TEST_CASE("recomputation reads what forward kept of attention") {
  at::manual_seed(52);
  const DecoderSizes sizes;
  for (const DecoderCase& test : decoder_cases(sizes)) {
    INFO(test.name);
    const at::Tensor hidden = at::randn({kRows, kLength, sizes.hidden}, at::kDouble);
    const Recomputed expected = plain(test, test.options, hidden, {});
    int64_t bytes = 0;
    const Recomputed changed =
        recompute(test, test.options, hidden, {}, /*keeps=*/true, [&](KeptTensors& kept) {
          at::Tensor& output = *kept.tensors()[0];
          bytes = output.numel();
          output = output * 2;
        });
    CHECK(bytes == kRows * kLength * sizes.heads * sizes.d);
    CHECK(relative_error(changed.gradients[0], expected.gradients[0]) > 1e-3);
  }
}

TEST_CASE("a feed-forward in pieces of rows has the numbers of one in whole") {
  at::manual_seed(53);
  const DecoderSizes sizes;
  for (const DecoderCase& test : all_cases(sizes)) {
    for (const PackedRows& packed : packings()) {
      for (const int64_t rows : {1, 4, 7, 13, 14}) {
        INFO(test.name << (packed.defined() ? ", packed, " : ", ") << rows << " rows");
        const at::Tensor hidden = at::randn({kRows, kLength, sizes.hidden}, at::kDouble);
        DecoderBlockOptions options = test.options;
        options.feed_forward_rows = rows;
        check_equal(recompute(test, options, hidden, packed, /*keeps=*/true),
                    plain(test, test.options, hidden, packed), 1e-11);
      }
    }
  }
}

TEST_CASE("pieces hold a piece's inner activations") {
  CountingAllocator counting;
  at::manual_seed(54);
  const DecoderSizes sizes{.hidden = 16, .inner = 1024};
  constexpr int64_t kSequences = 8, kShort = 64, kPiece = 64;
  const at::Tensor hidden = at::randn({kSequences, kShort, sizes.hidden});
  for (DecoderCase test : {llama_case(sizes, false), with_adapters(llama_case(sizes, false))}) {
    INFO(test.name);
    test.options.rotary =
        ops::rotary_tables(ops::rotary_frequencies(sizes.d, {.theta = 100}), kShort);
    const auto peak = [&](int64_t rows) {
      DecoderBlockOptions options = test.options;
      options.feed_forward_rows = rows;
      const int64_t before = CountingAllocator::live_bytes();
      CountingAllocator::reset_peak();
      recompute(test, options, hidden, {}, /*keeps=*/true);
      return CountingAllocator::peak_bytes() - before;
    };
    // gate, up, their activation; in backward also gradients of all three.
    const int64_t inner = kSequences * kShort * 2 * sizes.inner * 4;
    const int64_t whole = peak(0), pieces = peak(kPiece);
    CHECK(whole > 2 * inner);
    CHECK(whole - pieces > inner);
    CHECK(pieces < inner);
  }
}
