// SPDX-License-Identifier: MIT
// Operations of GPT-2 and Llama: the GPU's versions against the CPU's in fp64.
#include "tessera/model/whole_model.h"
#include "tessera/models/language_model.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

double decoder_tolerance(at::ScalarType type) {
  return type == at::kBFloat16 ? 1.5e-2 : type == at::kHalf ? 3e-3 : 1e-4;
}

void check_on_gpu(const Tensors& inputs, const Formula& operation) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    INFO(at::toString(type));
    Tensors here;
    for (const at::Tensor& input : inputs) here.push_back(input.to(at::kCUDA, type));
    const auto exact = [&](const Tensors& t) {
      Tensors host;
      for (const at::Tensor& input : t) host.push_back(input.cpu());
      return operation(host).to(at::kCUDA);
    };
    check_gradients(here, operation, exact, decoder_tolerance(type));
  }
}

void check_attention(int64_t heads, int64_t key_heads, int64_t d, const at::Tensor& mask) {
  INFO("heads " << heads << " of " << key_heads << " keys, d " << d << " mask " << mask.defined());
  check_on_gpu({at::randn({3, 130, heads, d}), at::randn({3, 130, key_heads, d}),
                at::randn({3, 130, key_heads, d})},
               [&](const Tensors& t) {
                 return ops::causal_attention(t[0], t[1], t[2],
                                              mask.defined() ? mask.to(t[0].device()) : mask,
                                              {.scale = 1 / std::sqrt(double(d))});
               });
}

}  // namespace

TEST_CASE("causal attention on the GPU, one key head for one or several queries") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(41);
  check_attention(12, 12, 64, {});
  check_attention(8, 2, 64, {});
  check_attention(4, 2, 128, {});
  check_attention(4, 2, 20, {});
}

TEST_CASE("causal attention on the GPU with padding on either side") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(42);
  const at::Tensor position = at::arange(130).unsqueeze(0);
  check_attention(8, 2, 64, position.ge(at::tensor({0, 40, 130}).unsqueeze(1)));
  check_attention(12, 12, 64, position.lt(at::tensor({130, 60, 1}).unsqueeze(1)));
}

TEST_CASE("RMS norm, SwiGLU, rotary positions and [in, out] weights on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(43);
  check_on_gpu({at::randn({3, 70, 2048}), at::randn({2048})},
               [](const Tensors& t) { return ops::rms_norm(t[0], t[1], 1e-5); });
  check_on_gpu({at::randn({3, 70, 96}), at::randn({3, 70, 96})},
               [](const Tensors& t) { return ops::swiglu(t[0], t[1]); });
  check_on_gpu({at::randn({2, 70, 4, 64})}, [](const Tensors& t) {
    const at::Tensor frequencies = ops::rotary_frequencies(
        64, {.theta = 5e5, .kind = ops::RotaryOptions::Kind::kLlama3, .factor = 8});
    return ops::rotary(t[0], ops::rotary_tables(frequencies.to(t[0].device()), 70));
  });
  check_on_gpu({at::randn({3, 70, 64}) / 8, at::randn({64, 96}), at::randn({96})},
               [](const Tensors& t) { return ops::linear_in_out(t[0], t[1], t[2]); });
}

TEST_CASE("dropout on the GPU repeats with its seed and leaves the device's generator alone") {
  TESSERA_NEEDS_GPUS(1);
  const at::Tensor x = at::ones({300, 400}, at::kCUDA);
  const at::Tensor y = ops::dropout(x, 0.25, 11);
  CHECK(y.eq(0).to(at::kDouble).mean().item<double>() == Approx(0.25).margin(0.01));
  at::manual_seed(44);
  const at::Tensor next = at::rand({4}, at::kCUDA);
  at::manual_seed(44);
  CHECK(at::equal(y, ops::dropout(x, 0.25, 11)));
  CHECK(at::equal(next, at::rand({4}, at::kCUDA)));
  CHECK_FALSE(at::equal(y, ops::dropout(x, 0.25, 12)));
  const at::Tensor q = at::randn({2, 64, 4, 64}, at::kCUDA).to(at::kBFloat16);
  const auto attend = [&](uint64_t seed) {
    return ops::causal_attention(q, q, q, {}, {.scale = 0.1, .dropout = 0.3, .seed = seed});
  };
  CHECK(at::equal(attend(5), attend(5)));
  CHECK_FALSE(at::equal(attend(5), attend(6)));
}

TEST_CASE("GPT-2 and Llama give the same loss and gradients on the GPU as on the CPU") {
  TESSERA_NEEDS_GPUS(1);
  for (const std::string name : {"gpt2-tiny", "llama-tiny", "llama-mini"}) {
    INFO(name);
    const ModelSpec spec = LanguageModel::preset(name).make_causal();
    WholeModel host(spec, {.seed = 5}), device(spec, {.device = at::kCUDA, .seed = 5});
    MicroBatch batch;
    batch.input_ids = at::arange(4, 4 + 120).reshape({3, 40});
    batch.labels = (batch.input_ids + 1).remainder(1000);
    const at::Tensor a = host.forward(batch), b = device.forward(batch.to(at::kCUDA));
    CHECK(relative_error(b, a) < 1e-5);
    a[0].backward();
    b[0].backward();
    for (size_t i = 0; i < host.parameters().size(); ++i) {
      INFO(host.parameters()[i].name);
      CHECK(relative_error(device.parameters()[i].tensor.grad(),
                           host.parameters()[i].tensor.grad()) < 1e-3);
    }
  }
}

TEST_CASE("causal attention on the GPU inside packed rows") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(44);
  MicroBatch batch;
  batch.packed = make_packed_rows({100, 1, 29, 64, 66, 2, 40, 88}, 130);
  const PackedRows here = batch.to(at::kCUDA).packed;
  for (const auto& [heads, key_heads, d] : {std::tuple{12, 12, 64}, {8, 2, 64}, {4, 2, 20}}) {
    INFO("heads " << heads << " of " << key_heads << " keys, d " << d);
    check_on_gpu({at::randn({3, 130, heads, d}), at::randn({3, 130, key_heads, d}),
                  at::randn({3, 130, key_heads, d})},
                 [&](const Tensors& t) {
                   return ops::causal_attention(t[0], t[1], t[2], {}, {.scale = 0.15},
                                                t[0].is_cuda() ? here : batch.packed);
                 });
  }
}
