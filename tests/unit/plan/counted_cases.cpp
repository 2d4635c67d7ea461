// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "lib/core/meta.h"
#include "lib/ops/fp8.h"
#include "lib/ops/fp8_codes.h"
#include "lib/plan/meta_kernels.h"
#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"
#include "tests/unit/plan/counted_list.h"

namespace tessera::testing {
namespace {

using ops::ColumnSums;
using ops::SelfAttention;

constexpr double kEpsilon = 1e-5;

void add_linear(List& list, int64_t rows, int64_t in, int64_t out) {
  const std::string shape = concat(" ", rows, "x", in, "x", out);
  list.add("linear" + shape, [=](const Inputs& make) {
    const auto x = make({rows, in}), w = make({out, in}), b = make({out}), r = make({rows, out});
    return [=] { return Tensors{ops::linear_forward(x, w, b, r)}; };
  });
  list.add("linear, weight turned, no bias" + shape, [=](const Inputs& make) {
    const auto x = make({rows, in}), w = make({in, out});
    return [=] { return Tensors{ops::linear_forward(x, w.t(), {})}; };
  });
  list.add("linear to inputs" + shape, [=](const Inputs& make) {
    const auto dy = make({rows, out}), w = make({out, in});
    return [=] { return Tensors{ops::linear_backward_input(dy, w)}; };
  });
  list.add("linear to weights" + shape, [=](const Inputs& make) {
    const auto dy = make({rows, out}), x = make({rows, in}), dw = make({out, in}),
               wide = make.fp32({out, in});
    return [=] {
      ops::linear_backward_weight(dy, x, dw);
      ops::linear_backward_weight(dy, x, wide);
      return Tensors{};
    };
  });
  list.add("linear to bias" + shape, [=](const Inputs& make) {
    const auto dy = make({rows, out}), db = make({out});
    return [=] {
      ColumnSums sums;
      ops::linear_backward_bias(dy, db, sums);
      ops::add_column_sums(sums);
      return Tensors{};
    };
  });
  list.add("linear and GELU" + shape, [=](const Inputs& make) {
    const auto x = make({rows, in}), w = make({out, in}), b = make({out});
    return [=] {
      at::Tensor before;
      const at::Tensor y = ops::linear_gelu_forward(x, w, b, &before);
      return Tensors{y, before};
    };
  });
}

void add_fp8(List& list, int64_t rows, int64_t in, int64_t out) {
  for (const Fp8 scaling : {Fp8::kTensorwise, Fp8::kRowwise}) {
    const std::string shape =
        concat(scaling == Fp8::kRowwise ? ", rowwise " : " ", rows, "x", in, "x", out);
    list.add("8-bit matrices and their product" + shape, [=](const Inputs& make) {
      const auto x = make({rows, in}), w = make({out, in});
      return [=] {
        const auto left = ops::fp8_matrix(x, at::kFloat8_e4m3fn, scaling),
                   right = ops::fp8_matrix(w, at::kFloat8_e4m3fn, scaling);
        return Tensors{ops::fp8_product(left, right, x.scalar_type())};
      };
    });
    list.add("8-bit layouts and the products of their columns" + shape, [=](const Inputs& make) {
      const auto dy = make({rows, out}), x = make({rows, in}), w = make({out, in});
      return [=] {
        const auto layouts = [](const at::Tensor& of, at::ScalarType dtype, bool rows) {
          return ops::fp8_layouts(of, ops::fp8_largest(of, Fp8::kTensorwise), dtype,
                                  {.rows = rows});
        };
        const auto a = layouts(dy, at::kFloat8_e5m2, true),
                   b = layouts(x, at::kFloat8_e4m3fn, false);
        return Tensors{a.rows.codes, ops::fp8_product(a.columns, b.columns, at::kFloat)};
      };
    });
    list.add("8-bit product of turned matrices" + shape, [=](const Inputs& make) {
      const auto dy = make({rows, out}), x = make({rows, in});
      return [=] {
        const auto left = ops::fp8_matrix(dy.t(), at::kFloat8_e5m2, scaling),
                   right = ops::fp8_matrix(x.t(), at::kFloat8_e4m3fn, scaling);
        return Tensors{ops::fp8_product(left, right, at::kFloat)};
      };
    });
  }
  list.add(concat("stored codes, turned and decoded ", out, "x", in), [=](const Inputs& make) {
    const auto w = make({out, in});
    return [=] {
      const auto codes = ops::fp8_matrix(w, at::kFloat8_e4m3fn, Fp8::kTensorwise);
      const at::Tensor values = at::empty_like(w);
      ops::fp8_decode(codes, values);
      return Tensors{ops::fp8_turned(codes).codes, values};
    };
  });
}

void add_elementwise(List& list, int64_t rows, int64_t n) {
  const std::string shape = concat(" ", rows, "x", n);
  list.add("GELU" + shape, [=](const Inputs& make) {
    const auto x = make({rows, n}), dy = make({rows, n});
    return [=] { return Tensors{ops::gelu_tanh_forward(x), ops::gelu_tanh_backward(dy, x)}; };
  });
  for (const bool again : {true, false}) {
    list.add(concat("GELU and bias, backward", again ? ", output anew" : "", shape),
             [=](const Inputs& make) {
               const auto x = make({rows, n}), dy = make({rows, n}), db = make({n});
               return [=] {
                 ColumnSums sums;
                 at::Tensor y;
                 ops::gelu_tanh_backward_(dy, x, db, sums, again ? &y : nullptr);
                 ops::add_column_sums(sums);
                 return Tensors{y};
               };
             });
  }
  list.add("dropout" + shape, [=](const Inputs& make) {
    const auto x = make({rows, n}), dy = make({rows, n}), db = make({n});
    return [=] {
      const ops::Dropout dropout{.probability = 0.1, .seed = 7};
      const at::Tensor y = ops::dropout_add(x, x, dropout);
      ColumnSums sums;
      const at::Tensor dx = ops::dropout_backward(dy, dropout, db, sums);
      ops::add_column_sums(sums);
      return Tensors{y, dx};
    };
  });
  list.add("SwiGLU" + shape, [=](const Inputs& make) {
    const auto x = make({rows, 2 * n}), dy = make({rows, n});
    return [=] {
      at::Tensor y;
      return Tensors{ops::swiglu_forward(x), ops::swiglu_backward_(dy, x, &y),
                     ops::swiglu_backward_(dy, x, /*output=*/nullptr)};
    };
  });
  list.add("activations and norms with their largest magnitudes" + shape, [=](const Inputs& make) {
    const auto x = make({rows, n}), both = make({rows, 2 * n}), dy = make({rows, n}), w = make({n});
    return [=] {
      at::Tensor a, b, c, d, e;
      ColumnSums sums;
      Tensors results{ops::gelu_tanh_forward(x, &a), ops::swiglu_forward(both, &b),
                      ops::swiglu_backward_(dy, both, /*output=*/nullptr, &c)};
      ops::gelu_tanh_backward_(dy, x, {}, sums, /*output=*/nullptr, &d);
      const ops::RmsNormOutput rms = ops::rms_norm_forward(x, w, kEpsilon, {}, &e);
      results.insert(results.end(), {rms.output, a, b, c, d, e});
      const ops::LayerNormOutput norm = ops::layer_norm_forward(x, w, w, kEpsilon, {}, &a);
      const ops::LayerNormGradients wanted{.largest = &b};
      results.push_back(ops::norm_backward(dy, {x, norm.mean, norm.rstd, w, w}, {}, wanted, sums));
      results.insert(results.end(), {norm.output, a, b});
      return results;
    };
  });
}

void add_norms(List& list, int64_t rows, int64_t n) {
  const std::string shape = concat(" ", rows, "x", n);
  list.add("layer norm" + shape, [=](const Inputs& make) {
    const auto x = make({rows, n}), w = make({n}), b = make({n});
    return [=] {
      const auto [y, mean, rstd] = ops::layer_norm_forward(x, w, b, kEpsilon);
      return Tensors{y, mean, rstd};
    };
  });
  list.add("RMS norm" + shape, [=](const Inputs& make) {
    const auto x = make({rows, n}), w = make({n});
    return [=] {
      const auto [y, rstd] = ops::rms_norm_forward(x, w, kEpsilon);
      return Tensors{y, rstd};
    };
  });
  for (const bool again : {false, true}) {
    const std::string what = again ? ", backward with its output" : ", backward";
    list.add("layer norm" + what + shape, [=](const Inputs& make) {
      const auto x = make({rows, n}), dy = make({rows, n}), w = make({n}), b = make({n}),
                 dw = make({n}), db = make({n}), mean = make.fp32({rows}), rstd = make.fp32({rows});
      return [=] {
        ColumnSums sums;
        at::Tensor y;
        const at::Tensor dx = ops::norm_backward(dy, {x, mean, rstd, w, b}, dy, {dw, db, {}}, sums,
                                                 again ? &y : nullptr);
        ops::add_column_sums(sums);
        return again ? Tensors{dx, y} : Tensors{dx};
      };
    });
    list.add("RMS norm" + what + shape, [=](const Inputs& make) {
      const auto x = make({rows, n}), dy = make({rows, n}), w = make({n}), dw = make({n}),
                 rstd = make.fp32({rows});
      return [=] {
        ColumnSums sums;
        at::Tensor y;
        const at::Tensor dx = ops::norm_backward(dy, {.x = x, .rstd = rstd, .weight = w}, dy,
                                                 {dw, {}, {}}, sums, again ? &y : nullptr);
        ops::add_column_sums(sums);
        return again ? Tensors{dx, y} : Tensors{dx};
      };
    });
  }
}

struct Heads {
  int64_t heads, key_heads, d;
  bool alibi = false;
};

void add_attention(List& list, int64_t batch, int64_t sequence, const Heads& h) {
  const int64_t width = (h.heads + 2 * h.key_heads) * h.d;
  const std::string shape = concat(" ", batch, "x", sequence, "x", h.heads, "/", h.key_heads, "x",
                                   h.d, h.alibi ? " ALiBi" : "");
  enum class Rows { kWhole, kMasked, kPacked };
  for (const Rows rows : {Rows::kWhole, Rows::kMasked, Rows::kPacked}) {
    const std::string what = rows == Rows::kMasked   ? ", masked"
                             : rows == Rows::kPacked ? ", packed"
                                                     : "";
    const std::vector<int64_t> lengths(static_cast<size_t>(2 * batch), sequence / 2);
    const auto attention = [=](const Inputs& make) {
      SelfAttention a{.heads = h.heads, .key_heads = h.key_heads, .by_head = h.alibi, .scale = 0.1};
      if (h.alibi) a.slopes = make.fp32({h.heads});
      return a;
    };
    const auto inputs = [=](const Inputs& make) {
      return std::pair{rows == Rows::kMasked ? make.of({batch, sequence}, at::kBool) : at::Tensor(),
                       rows == Rows::kPacked ? make.packed(lengths, sequence) : PackedRows{}};
    };
    list.add("attention" + what + shape, [=](const Inputs& make) {
      const auto qkv = make({batch, sequence, width});
      const auto [mask, packed] = inputs(make);
      return [=, mask = mask, packed = packed, a = attention(make)] {
        const ops::AttentionOutput forward = ops::attention_forward(qkv, a, mask, packed);
        return Tensors{forward.output, forward.log_sum_exp};
      };
    });
    list.add("attention" + what + ", backward" + shape, [=](const Inputs& make) {
      const auto qkv = make({batch, sequence, width}), dy = make({batch, sequence, h.heads * h.d});
      const auto [mask, packed] = inputs(make);
      const SelfAttention a = attention(make);
      const ops::AttentionOutput forward = ops::attention_forward(qkv, a, mask, packed);
      return [=, mask = mask, packed = packed] {
        return Tensors{ops::attention_backward(dy, qkv, a, mask, forward, packed)};
      };
    });
    list.add("attention with dropout, there and back" + what + shape, [=](const Inputs& make) {
      const auto qkv = make({batch, sequence, width}), dy = make({batch, sequence, h.heads * h.d});
      const auto [mask, packed] = inputs(make);
      SelfAttention a = attention(make);
      a.dropout = {.probability = 0.1, .seed = 7};
      return [=, mask = mask, packed = packed] {
        const auto forward = ops::attention_forward(qkv, a, mask, packed);
        return Tensors{forward.output, ops::attention_backward(dy, qkv, a, mask, forward, packed)};
      };
    });
    if (h.alibi || rows == Rows::kPacked) continue;
    list.add("attention of blocks in pieces" + what + shape, [=](const Inputs& make) {
      const auto q = make({batch, sequence, h.heads, h.d}),
                 k = make({batch, sequence, h.key_heads, h.d}),
                 v = make({batch, sequence, h.key_heads, h.d}),
                 dy = make({batch, sequence, h.heads * h.d});
      const auto [mask, packed] = inputs(make);
      return [=, mask = mask] {
        Tensors all;
        for (const at::Tensor& x : {q, k, v}) all.push_back(x.detach().requires_grad_());
        const at::Tensor y = ops::causal_attention(all[0], all[1], all[2], mask, {.scale = 0.1});
        torch::autograd::backward({y}, {dy});
        return Tensors{y.detach(), all[0].grad(), all[1].grad(), all[2].grad()};
      };
    });
  }
  for (const bool placed : {false, true}) {
    list.add((placed ? "rotary by positions" : "rotary") + shape, [=](const Inputs& make) {
      const auto x = make({batch, sequence, h.heads, h.d}), cos = make.fp32({sequence, h.d / 2}),
                 sin = make.fp32({sequence, h.d / 2});
      const auto positions =
          placed ? make.packed(std::vector<int64_t>(batch, sequence), sequence).positions
                 : at::Tensor();
      return [=] {
        ops::rotary_(x, cos, sin, positions, false);
        return Tensors{};
      };
    });
  }
}

void add_ends(List& list, int64_t rows, int64_t n, int64_t vocabulary) {
  const std::string shape = concat(" ", rows, "x", n, "x", vocabulary);
  list.add("embedding, backward" + shape, [=](const Inputs& make) {
    const auto dy = make({rows, n}), ids = make.places({rows}), dw = make({vocabulary, n});
    return [=] {
      ops::embedding_backward(dy, ids, dw);
      return Tensors{};
    };
  });
  list.add("logits" + shape, [=](const Inputs& make) {
    const auto x = make({rows, n}), w = make({vocabulary, n});
    return [=] { return Tensors{ops::logits_forward(x, w)}; };
  });
  list.add("loss" + shape, [=](const Inputs& make) {
    const at::Tensor logits = ops::logits_forward(make({rows, n}), make({vocabulary, n}));
    const auto labels = make.places({rows}), scale = make.fp32({}), loss = make.fp32({rows});
    return [=] {
      ops::cross_entropy_(logits, labels, scale, loss);
      return Tensors{};
    };
  });
  for (const int64_t chunk : {rows / 6, rows / 5}) {  // 6 of one size; 4, and 2 of other sizes
    list.add(concat("loss in chunks of ", chunk, shape), [=](const Inputs& make) {
      const auto x = make({rows, n}), w = make({vocabulary, n}), labels = make.places({rows});
      return [=] {
        const at::Tensor hidden = x.detach().requires_grad_(), table = w.detach().requires_grad_();
        const at::Tensor loss = ops::linear_cross_entropy(hidden, table, labels, {}, chunk);
        torch::autograd::backward({loss}, {at::ones_like(loss)});
        return Tensors{loss.detach(), hidden.grad(), table.grad()};
      };
    });
  }
  list.add("loss of shared vocabulary" + shape, [=](const Inputs& make) {
    const at::Tensor logits = ops::logits_forward(make({rows, n}), make({vocabulary, n}));
    const auto labels = make.places({rows}), scale = make.fp32({}),
               statistics = make.fp32({1, 2, rows}), loss = make.fp32({rows});
    return [=] {
      ops::cross_entropy_statistics(logits, labels, statistics[0]);
      ops::cross_entropy_gradient_(logits, labels, statistics, scale, loss);
      return Tensors{};
    };
  });
}

}  // namespace

std::vector<CountedCase> counted_cases(at::ScalarType type) {
  List list(type);
  add_linear(list, 384, 256, 768);
  add_linear(list, 384, 20, 36);  // no kernel supports it
  add_fp8(list, 384, 256, 768);
  add_fp8(list, 100, 48, 40);  // filled, and multiplied as on the CPU
  for (const int64_t n : {256, 1024, 2560, 5120, 36}) {
    add_norms(list, 200, n);
    add_elementwise(list, 200, n);
  }
  add_norms(list, 5000, 1024);
  add_attention(list, 2, 256, {.heads = 4, .key_heads = 4, .d = 64, .alibi = true});
  add_attention(list, 2, 256, {.heads = 4, .key_heads = 4, .d = 80, .alibi = true});
  add_attention(list, 2, 200, {.heads = 4, .key_heads = 4, .d = 64});
  add_attention(list, 2, 384, {.heads = 8, .key_heads = 2, .d = 64});
  add_attention(list, 3, 48, {.heads = 3, .key_heads = 3, .d = 8});
  add_library_attention(list);
  add_ends(list, 192, 256, 1000);
  add_ends(list, 192, 256, 1003);
  add_ends(list, 192, 36, 1003);
  return list.all;
}

std::vector<std::string> described(const Tensors& outputs) {
  std::vector<std::string> texts;
  for (const at::Tensor& x : outputs) texts.push_back(concat(x.scalar_type(), " ", x.sizes()));
  return texts;
}

Taken counted(const CountedCase& test, at::DeviceType type) {
  register_meta_kernels();
  const MetaStandsFor stands(type);
  const Run run = test.prepare(at::kMeta);
  MetaMemoryCounter counter;
  const Tensors outputs = run();
  return {described(outputs), counter.live_bytes(), counter.peak_bytes()};
}

std::string beside(const CountedCase& test, const Taken& planned, const Taken& measured) {
  return concat(test.name, ": kept ", planned.kept, " planned, ", measured.kept, " measured; most ",
                planned.most, " planned, ", measured.most, " measured");
}

}  // namespace tessera::testing
