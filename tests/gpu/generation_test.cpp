// SPDX-License-Identifier: MIT
// Incremental decoding operations on the GPU.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tessera/core/key_value_cache.h"
#include "tessera/model/whole_model.h"
#include "tessera/models/language_model.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

TEST_CASE("attention to kept keys on the GPU: every head size, fewer key heads, long rows") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(61);
  struct Sizes {
    int64_t heads, key_heads, d;
  };
  for (const auto& [heads, key_heads, d] :
       {Sizes{16, 16, 64}, {12, 12, 80}, {8, 2, 128}, {4, 1, 256}, {6, 3, 8}, {4, 4, 20}}) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
      for (const bool alibi : {false, true}) {
        CAPTURE(heads, key_heads, d, at::toString(type), alibi);
        const at::Tensor lengths = at::tensor({0, 1, 15, 16, 63, 64, 500, 1023}, at::kLong);
        const int64_t batch = lengths.size(0), capacity = 1024;
        const auto drawn = [&](at::IntArrayRef shape) { return at::randn(shape).to(type); };
        // Queries, keys and values in one tensor, as in blocks.
        const at::Tensor qkv = drawn({batch, 1, heads, 3, d});
        const at::Tensor q = qkv.select(3, 0);
        const at::Tensor k = qkv.select(3, 1).narrow(2, 0, key_heads);
        const at::Tensor v = qkv.select(3, 2).narrow(2, 0, key_heads);
        const at::Tensor keys = drawn({batch, capacity, key_heads, d});
        const at::Tensor values = drawn({batch, capacity, key_heads, d});
        const at::Tensor slopes = alibi ? ops::alibi_slopes(heads) : at::Tensor();
        const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble).contiguous(); };
        const at::Tensor expected =
            ops::attention_to_cache(wide(q), wide(k), wide(v), {wide(keys), wide(values), lengths},
                                    {.scale = 0.2, .slopes = slopes});
        const auto here = [](const at::Tensor& x) { return x.defined() ? x.cuda() : x; };
        const at::Tensor on_gpu = here(qkv), kept_keys = here(keys), kept_values = here(values);
        const at::Tensor actual = ops::attention_to_cache(
            on_gpu.select(3, 0), on_gpu.select(3, 1).narrow(2, 0, key_heads),
            on_gpu.select(3, 2).narrow(2, 0, key_heads), {kept_keys, kept_values, here(lengths)},
            {.scale = 0.2, .slopes = here(slopes)});
        CHECK(relative_error(actual, expected) < (type == at::kFloat ? 1e-5 : 6e-3));
        for (int64_t row = 0; row < batch; ++row) {
          const int64_t place = lengths[row].item<int64_t>();
          keys[row][place] = k[row][0];
          values[row][place] = v[row][0];
        }
        CHECK(at::equal(kept_keys.cpu(), keys));
        CHECK(at::equal(kept_values.cpu(), values));
      }
    }
  }
}

TEST_CASE("scores of rows given token by token on the GPU are those of whole rows") {
  TESSERA_NEEDS_GPUS(1);
  const at::NoGradGuard no_grad;
  for (const std::string name : {"bloom-tiny", "gpt2-tiny", "llama-tiny", "llama-mini"}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      CAPTURE(name, at::toString(type));
      const ModelSpec spec = LanguageModel::preset(name).make_causal();
      WholeModel model(spec, {.device = at::kCUDA, .seed = 6});
      for (const auto& block : model.blocks()) {
        for (Parameter& parameter : block->parameters()) {
          parameter.tensor.set_data(parameter.tensor.to(type));
        }
      }
      const int64_t rows = 3, begun = 20, all = 26;
      MicroBatch whole;
      whole.input_ids = at::arange(rows * all).mul(7).remainder(900).view({rows, all}).cuda();
      const at::Tensor expected = model.logits(whole);
      MicroBatch piece;
      piece.decode_state.cache = std::make_shared<KeyValueCache>(rows, all);
      piece.input_ids = whole.input_ids.narrow(1, 0, begun).contiguous();
      const double tolerance = type == at::kFloat ? 1e-4 : 2e-2;
      CHECK(relative_error(model.logits(piece), expected.narrow(1, 0, begun)) < tolerance);
      for (int64_t place = begun; place < all; ++place) {
        piece.decode_state.lengths = at::full({rows}, place, whole.input_ids.options());
        piece.input_ids = whole.input_ids.narrow(1, place, 1).contiguous();
        CHECK(relative_error(model.logits(piece), expected.narrow(1, place, 1)) < tolerance);
      }
    }
  }
}
