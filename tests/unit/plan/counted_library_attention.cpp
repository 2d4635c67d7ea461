// SPDX-License-Identifier: MIT
#include <torch/csrc/autograd/autograd.h>

#include "tests/unit/plan/counted_list.h"

namespace tessera::testing {
namespace {

struct LibraryAttention {
  std::string name;
  int64_t heads = 8, key_heads = 8, queries = 384, keys = 384, d = 64, value_d = 64;
  enum class Mask { kNone, kCausal, kBool, kTrained } mask = Mask::kCausal;
};

void add_library_attention(List& list, const LibraryAttention& a) {
  constexpr int64_t kBatch = 2;
  using Mask = LibraryAttention::Mask;
  const auto forward = [=](const Inputs& make) {
    const auto q = make({kBatch, a.queries, a.heads, a.d}),
               k = make({kBatch, a.keys, a.key_heads, a.d}),
               v = make({kBatch, a.keys, a.key_heads, a.value_d});
    at::Tensor mask;
    if (a.mask == Mask::kBool) mask = make.of({kBatch, 1, a.queries, a.keys}, at::kBool);
    if (a.mask == Mask::kTrained) mask = make({1, a.heads, a.queries, a.keys});
    return [=] {
      Tensors all;
      for (const at::Tensor& x : {q, k, v}) all.push_back(x.detach().requires_grad_());
      const bool trained = a.mask == Mask::kTrained;
      const auto given = trained          ? std::optional(mask.detach().requires_grad_())
                         : mask.defined() ? std::optional(mask)
                                          : std::nullopt;
      if (trained) all.push_back(*given);
      all.insert(all.begin(),
                 at::scaled_dot_product_attention(
                     all[0].transpose(1, 2), all[1].transpose(1, 2), all[2].transpose(1, 2), given,
                     0.0, a.mask == Mask::kCausal, 0.125, a.heads > a.key_heads));
      return all;
    };
  };
  list.add("LibTorch's attention, " + a.name, [=](const Inputs& make) { return forward(make); });
  list.add("LibTorch's attention, there and back, " + a.name, [=](const Inputs& make) {
    const auto run = forward(make);
    const auto dy = make({kBatch, a.queries, a.heads, a.value_d}).transpose(1, 2);
    return [=] {
      const Tensors all = run();
      Tensors given{all[0].detach()};
      torch::autograd::backward({all[0]}, {dy});
      for (size_t i = 1; i < all.size(); ++i) given.push_back(all[i].grad());
      return given;
    };
  });
}

}  // namespace

void add_library_attention(List& list) {
  using Mask = LibraryAttention::Mask;
  add_library_attention(list, {.name = "causal"});
  add_library_attention(list, {.name = "masked", .mask = Mask::kBool});
  add_library_attention(
      list, {.name = "masked, odd rows", .queries = 301, .keys = 301, .mask = Mask::kBool});
  add_library_attention(list, {.name = "trained mask", .mask = Mask::kTrained});
  add_library_attention(list, {.name = "shared key heads", .key_heads = 2});
  add_library_attention(list, {.name = "narrow values", .d = 96, .value_d = 64});
  add_library_attention(list, {.name = "odd heads", .d = 20, .value_d = 20});
  add_library_attention(list, {.name = "across", .keys = 200, .mask = Mask::kNone});
}

}  // namespace tessera::testing
