// SPDX-License-Identifier: MIT
// Every operation against its ATen reference, on the CPU and on a GPU if there is one (device
// time).
//   bench_ops --benchmark_filter=cuda/.*layer_norm
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "benchmarks/ops/timing.h"
#include "lib/ops/fp8.h"
#include "lib/ops/reference.h"
#include "tessera/ops/functional.h"

namespace tessera::benchmarks {
namespace {

using Call = std::function<void()>;

constexpr int64_t kPackedTokens = 2609;

// bytes: necessary traffic; flops: necessary operations. Either determines the rate.
struct Case {
  std::string name;
  double bytes = 0, flops = 0;
  Call reference, tessera;
};

// Sizes of bloom-560m with 16 x 512 tokens on a GPU, small ones on the CPU.
struct Sizes {
  int64_t batch, sequence, heads, d, vocabulary, chunk, parameters;
  int64_t hidden() const { return heads * d; }
  int64_t rows() const { return batch * sequence; }
};

struct Maker {
  at::TensorOptions options;
  at::Tensor draw(at::IntArrayRef shape) const {
    return at::randn(shape, options.dtype(at::kFloat)).to(options.dtype().toScalarType());
  }
  at::Tensor fp32(at::IntArrayRef shape) const {
    return at::randn(shape, options.dtype(at::kFloat));
  }
};

void add_linear(std::vector<Case>& cases, const Maker& make, const Sizes& s,
                const std::string& name, int64_t in, int64_t out) {
  const at::Tensor x = make.draw({s.rows(), in}), w = make.draw({out, in}), b = make.draw({out}),
                   dy = make.draw({s.rows(), out});
  const at::Tensor dw = make.draw({out, in}), residual = make.draw({s.rows(), out});
  const double flops = 2.0 * double(s.rows()) * double(in) * double(out);
  cases.push_back({"linear_" + name + "_forward", 0, flops,
                   [=] { ops::reference::linear_forward(x, w, b, {}, {}); },
                   [=] { ops::linear_forward(x, w, b); }});
  cases.push_back({"linear_" + name + "_residual_forward", 0, flops,
                   [=] { ops::reference::linear_forward(x, w, b, residual, {}); },
                   [=] { ops::linear_forward(x, w, b, residual); }});
  cases.push_back({"linear_" + name + "_gelu_forward", 0, flops,
                   [=] {
                     at::Tensor pre;
                     ops::reference::linear_gelu_forward(x, w, b, &pre);
                   },
                   [=] {
                     at::Tensor pre;
                     ops::linear_gelu_forward(x, w, b, &pre);
                   }});
  cases.push_back({"linear_" + name + "_backward_input", 0, flops, [=] { at::matmul(dy, w); },
                   [=] { ops::linear_backward_input(dy, w); }});
  cases.push_back({"linear_" + name + "_backward_weight", 0, flops,
                   [=] { ops::reference::linear_backward_weight(dy, x, dw, true); },
                   [=] { ops::linear_backward_weight(dy, x, dw); }});
  cases.push_back({"linear_" + name + "_backward_bias", double(dy.nbytes()), 0,
                   [=] {
                     ops::ColumnSums sums;
                     ops::reference::linear_backward_bias(dy, b, sums);
                     ops::reference::add_column_sums(sums);
                   },
                   [=] {
                     ops::ColumnSums sums;
                     ops::linear_backward_bias(dy, b, sums);
                     ops::add_column_sums(sums);
                   }});
}

void add_layer_norm(std::vector<Case>& cases, const Maker& make, const std::string& name,
                    int64_t rows, int64_t h) {
  const at::Tensor x = make.draw({rows, h}), w = make.draw({h}), b = make.draw({h}),
                   dy = make.draw({rows, h}), r = make.draw({rows, h});
  const auto forward = ops::layer_norm_forward(x, w, b, 1e-5);
  const ops::LayerNormGradients sinks{make.draw({h}), make.draw({h}), make.draw({h})};
  const double bytes = double(x.nbytes());
  cases.push_back({name + "_forward", 2 * bytes, 0,
                   [=] { ops::reference::layer_norm_forward(x, w, b, 1e-5, {}); },
                   [=] { ops::layer_norm_forward(x, w, b, 1e-5); }});
  const auto backward = [=](auto function) {
    return [=] {
      ops::ColumnSums sums;
      at::Tensor y;
      function(dy, {x, forward.mean, forward.rstd, w, b}, r, sinks, sums, &y);
      ops::add_column_sums(sums);
    };
  };
  cases.push_back({name + "_backward", 5 * bytes, 0, backward(&ops::reference::norm_backward),
                   backward(&ops::norm_backward)});
}

void add_norm_and_gelu(std::vector<Case>& cases, const Maker& make, const Sizes& s) {
  const int64_t h = s.hidden();
  add_layer_norm(cases, make, "layer_norm", s.rows(), h);
  // Tokens of 16 packed rows with SQuAD's lengths, so few that some blocks have more than others.
  if (s.rows() > kPackedTokens) add_layer_norm(cases, make, "layer_norm_packed", kPackedTokens, h);
  const at::Tensor pre = make.draw({s.rows(), 4 * h}), dact = make.draw({s.rows(), 4 * h}),
                   db = make.draw({4 * h});
  cases.push_back({"gelu_forward", 2.0 * double(pre.nbytes()), 0,
                   [=] { ops::reference::gelu_tanh_forward(pre); },
                   [=] { ops::gelu_tanh_forward(pre); }});
  const auto gelu = [=](auto function, bool kept) {
    return [=] {
      ops::ColumnSums sums;
      at::Tensor active;
      function(dact, pre, db, sums, kept ? nullptr : &active, /*largest=*/nullptr);
      ops::add_column_sums(sums);
    };
  };
  cases.push_back({"gelu_backward_with_bias", 4.0 * double(pre.nbytes()), 0,
                   gelu(&ops::reference::gelu_tanh_backward_, false),
                   gelu(&ops::gelu_tanh_backward_, false)});
  cases.push_back({"gelu_backward_with_bias_kept", 3.0 * double(pre.nbytes()), 0,
                   gelu(&ops::reference::gelu_tanh_backward_, true),
                   gelu(&ops::gelu_tanh_backward_, true)});
}

void add_attention(std::vector<Case>& cases, const Maker& make, const Sizes& s,
                   const std::string& name, const ops::SelfAttention& attention,
                   const PackedRows& packed = {}) {
  const int64_t columns = (attention.heads + 2 * attention.key_heads) * s.d;
  const at::Tensor qkv = make.draw({s.batch, s.sequence, columns}),
                   dy = make.draw({s.batch, s.sequence, s.hidden()});
  const auto mine = ops::attention_forward(qkv, attention, {}, packed);
  const auto theirs = ops::reference::attention_forward(qkv, attention, {}, packed);
  double pairs = packed.defined() ? 0 : double(s.rows()) * double(s.sequence);
  for (const int64_t length : packed.lengths) pairs += double(length * length);
  const double flops = 2.0 * pairs * double(s.hidden());  // causal: half of the square
  cases.push_back({name + "_forward", 0, flops,
                   [=] { ops::reference::attention_forward(qkv, attention, {}, packed); },
                   [=] { ops::attention_forward(qkv, attention, {}, packed); }});
  cases.push_back(
      {name + "_backward", 0, 2.5 * flops,
       [=] { ops::reference::attention_backward(dy, qkv, attention, {}, theirs, packed); },
       [=] { ops::attention_backward(dy, qkv, attention, {}, mine, packed); }});
}

// Every sequence as rows of about a third of it.
PackedRows thirds(const Maker& make, const Sizes& s) {
  MicroBatch batch;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < s.batch; ++i) {
    const int64_t row = s.sequence / 3, more = s.sequence / 50 * (i % 5);
    lengths.insert(lengths.end(), {row + more, row, s.sequence - 2 * row - more});
  }
  batch.packed = make_packed_rows(lengths, s.sequence);
  return batch.to(make.options.device()).packed;
}

void add_attentions(std::vector<Case>& cases, const Maker& make, const Sizes& s) {
  const at::Tensor slopes = ops::alibi_slopes(s.heads).to(make.options.device());
  add_attention(cases, make, s, "alibi_attention", ops::alibi(slopes, s.d));
  add_attention(cases, make, s, "grouped_attention",
                {.heads = s.heads, .key_heads = s.heads / 4, .scale = 0.125});
  add_attention(cases, make, s, "packed_attention", ops::alibi(slopes, s.d), thirds(make, s));
}

void add_rms_norm(std::vector<Case>& cases, const Maker& make, const std::string& name,
                  int64_t rows, int64_t h) {
  const at::Tensor x = make.draw({rows, h}), w = make.draw({h}), dy = make.draw({rows, h}),
                   r = make.draw({rows, h});
  const auto norm = ops::rms_norm_forward(x, w, 1e-5);
  const ops::LayerNormGradients sinks{make.draw({h}), {}, {}};
  const double bytes = double(x.nbytes());
  cases.push_back({name + "_forward", 2 * bytes, 0,
                   [=] { ops::reference::rms_norm_forward(x, w, 1e-5, {}); },
                   [=] { ops::rms_norm_forward(x, w, 1e-5); }});
  const auto backward = [=](auto function) {
    return [=] {
      ops::ColumnSums sums;
      at::Tensor y;
      function(dy, {.x = x, .rstd = norm.rstd, .weight = w}, r, sinks, sums, &y);
      ops::add_column_sums(sums);
    };
  };
  cases.push_back({name + "_backward", 5 * bytes, 0, backward(&ops::reference::norm_backward),
                   backward(&ops::norm_backward)});
}

// Sizes of larger models, on GPUs.
void add_wide_norms(std::vector<Case>& cases, const Maker& make, const Sizes& s) {
  for (const int64_t rows : {s.rows(), s.rows() / 4}) {
    for (const int64_t h : {2048, 2560, 4096, 5120}) {
      const std::string size = std::to_string(rows) + "x" + std::to_string(h);
      add_layer_norm(cases, make, "layer_norm_" + size, rows, h);
      add_rms_norm(cases, make, "rms_norm_" + size, rows, h);
    }
  }
}

void add_wide_attentions(std::vector<Case>& cases, const Maker& make, const Sizes& given) {
  constexpr int64_t kHeads = 32;
  const at::Tensor slopes = ops::alibi_slopes(kHeads).to(make.options.device());
  for (const auto& [batch, sequence, d] : {std::tuple<int64_t, int64_t, int64_t>{16, 512, 80},
                                           {8, 512, 96},
                                           {8, 512, 128},
                                           {4, 1024, 128},
                                           {4, 2048, 128}}) {
    Sizes s = given;
    s.batch = batch, s.sequence = sequence, s.heads = kHeads, s.d = d;
    const std::string size = std::to_string(batch) + "x" + std::to_string(sequence) + "_" +
                             std::to_string(kHeads) + "x" + std::to_string(d);
    add_attention(cases, make, s, "alibi_attention_" + size, ops::alibi(slopes, d));
    if (sequence > 512) continue;
    const PackedRows packed = thirds(make, s);
    add_attention(cases, make, s, "packed_attention_" + size, ops::alibi(slopes, d), packed);
    add_attention(cases, make, s, "packed_grouped_attention_" + size,
                  {.heads = kHeads, .key_heads = kHeads / 4, .scale = 0.1}, packed);
  }
}

// Llama's additional operations, with twice the heads: hidden 2048 beside bloom-560m's 1024.
void add_decoder(std::vector<Case>& cases, const Maker& make, const Sizes& s) {
  const int64_t h = 2 * s.hidden(), rows = s.rows();
  add_rms_norm(cases, make, "rms_norm", rows, h);
  const at::Tensor gate_up = make.draw({rows, 4 * h}), dactive = make.draw({rows, 2 * h});
  const double half = double(dactive.nbytes());
  cases.push_back({"swiglu_forward", 3 * half, 0, [=] { ops::reference::swiglu_forward(gate_up); },
                   [=] { ops::swiglu_forward(gate_up); }});
  // Beside a pass of its own for the largest magnitude.
  cases.push_back({"swiglu_backward_and_largest", 5 * half, 0,
                   [=] {
                     ops::fp8_largest(ops::swiglu_backward_(dactive, gate_up, nullptr),
                                      Fp8::kTensorwise);
                   },
                   [=] {
                     at::Tensor largest;
                     ops::swiglu_backward_(dactive, gate_up, nullptr, &largest);
                   }});
  const auto swiglu = [=](auto function, bool kept) {
    return [=] {
      at::Tensor active;
      function(dactive, gate_up, kept ? nullptr : &active, /*largest=*/nullptr);
    };
  };
  cases.push_back({"swiglu_backward", 6 * half, 0, swiglu(&ops::reference::swiglu_backward_, false),
                   swiglu(&ops::swiglu_backward_, false)});
  cases.push_back({"swiglu_backward_kept", 5 * half, 0,
                   swiglu(&ops::reference::swiglu_backward_, true),
                   swiglu(&ops::swiglu_backward_, true)});
  const at::Tensor heads = make.draw({s.batch, s.sequence, 2 * s.heads, s.d});
  const at::Tensor angles = make.fp32({s.sequence, s.d / 2}), cos = angles.cos(),
                   sin = angles.sin();
  cases.push_back({"rotary", 2 * double(heads.nbytes()), 0,
                   [=] { ops::reference::rotary_(heads, cos, sin, {}, false); },
                   [=] { ops::rotary_(heads, cos, sin, {}, false); }});
}

void add_head(std::vector<Case>& cases, const Maker& make, const Sizes& s) {
  const at::Tensor logits = make.draw({s.chunk, s.vocabulary}), loss = make.fp32({s.chunk}),
                   scale = make.fp32({}).fill_(1e-4);
  const at::Tensor labels = at::randint(s.vocabulary, {s.rows()}, make.options.dtype(at::kLong));
  const at::Tensor chunk_labels = labels.narrow(0, 0, s.chunk);
  cases.push_back({"cross_entropy_kernel", 2.0 * double(logits.nbytes()), 0,
                   [=] { ops::reference::cross_entropy_(logits, chunk_labels, scale, loss); },
                   [=] { ops::cross_entropy_(logits, chunk_labels, scale, loss); }});
  const at::Tensor hidden = make.draw({s.rows(), s.hidden()}).requires_grad_(),
                   weight = make.draw({s.vocabulary, s.hidden()}).requires_grad_();
  weight.mutable_grad() = at::zeros_like(weight);
  cases.push_back({"linear_cross_entropy", 0,
                   6.0 * double(s.rows()) * double(s.hidden()) * double(s.vocabulary),
                   [=] {
                     at::cross_entropy_loss(
                         at::matmul(hidden.narrow(0, 0, s.chunk), weight.t()).to(at::kFloat),
                         chunk_labels, {}, at::Reduction::Sum)
                         .backward();
                   },
                   [=] { ops::linear_cross_entropy(hidden, weight, labels, scale, s.chunk); }});
  const at::Tensor dx = make.draw({s.rows(), s.hidden()}),
                   dw = make.draw({s.vocabulary, s.hidden()});
  cases.push_back({"embedding_backward", 3.0 * double(dx.nbytes()), 0,
                   [=] { ops::reference::embedding_backward(dx, labels, dw); },
                   [=] { ops::embedding_backward(dx, labels, dw); }});
}

void add_update(std::vector<Case>& cases, const Maker& make, const Sizes& s) {
  const int64_t n = s.parameters;
  const at::Tensor p = make.fp32({n}), g = make.draw({n}), m = at::zeros_like(p),
                   v = at::ones_like(p);
  const at::Tensor low = p.scalar_type() == g.scalar_type() ? at::Tensor() : g.clone();
  const ops::AdamWScalars scalars{
      make.fp32({}).fill_(1e-6), make.fp32({}).fill_(10), make.fp32({}).fill_(1), {}};
  const std::vector<ops::AdamWRange> ranges{{p, g, m, v, low, 0.01}};
  const double bytes =
      24.0 * double(n) + double(g.nbytes()) + (low.defined() ? double(low.nbytes()) : 0);
  cases.push_back({"adamw", bytes, 0, [=] { ops::reference::adamw_update(ranges, {}, scalars); },
                   [=] { ops::adamw_update(ranges, {}, scalars); }});
  const std::vector<at::Tensor> pieces{g};
  cases.push_back({"square_sum", double(g.nbytes()), 0, [=] { ops::reference::square_sum(pieces); },
                   [=] { ops::square_sum(pieces); }});
}

void run(benchmark::State& state, const Case& c, const Call& call, at::Device device) {
  for (int i = 0; i < 2; ++i) seconds(device, call);
  for (auto _ : state) state.SetIterationTime(seconds(device, call));
  using benchmark::Counter;
  if (c.bytes > 0) state.counters["bytes/s"] = Counter(c.bytes, Counter::kIsIterationInvariantRate);
  if (c.flops > 0) state.counters["flop/s"] = Counter(c.flops, Counter::kIsIterationInvariantRate);
}

using Group = std::function<void(std::vector<Case>&, const Maker&, const Sizes&)>;

void register_device(at::Device device, at::ScalarType type, const Sizes& s) {
  std::vector<Group> groups{[](auto& c, const auto& m, const auto& z) {
                              add_linear(c, m, z, "qkv", z.hidden(), 3 * z.hidden());
                            },
                            [](auto& c, const auto& m, const auto& z) {
                              add_linear(c, m, z, "dense", z.hidden(), z.hidden());
                            },
                            [](auto& c, const auto& m, const auto& z) {
                              add_linear(c, m, z, "up", z.hidden(), 4 * z.hidden());
                            },
                            [](auto& c, const auto& m, const auto& z) {
                              add_linear(c, m, z, "down", 4 * z.hidden(), z.hidden());
                            },
                            add_norm_and_gelu,
                            add_attentions,
                            add_decoder,
                            add_head,
                            add_update};
  if (device.is_cuda()) groups.insert(groups.end(), {add_wide_norms, add_wide_attentions});
  const Maker make{at::TensorOptions(device).dtype(type)};
  for (const Group& group : groups) {
    const auto cases = std::make_shared<std::vector<Case>>();
    group(*cases, make, s);
    for (size_t i = 0; i < cases->size(); ++i) {
      const std::string name = std::string(device.is_cpu() ? "cpu/" : "cuda/") + (*cases)[i].name;
      for (const bool mine : {false, true}) {
        benchmark::RegisterBenchmark(
            (name + (mine ? "/tessera" : "/reference")).c_str(),
            [=](benchmark::State& state) {
              run(state, (*cases)[i], mine ? (*cases)[i].tessera : (*cases)[i].reference, device);
            })
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

void register_all() {
  register_device(at::kCPU, at::kFloat,
                  {.batch = 2,
                   .sequence = 64,
                   .heads = 4,
                   .d = 32,
                   .vocabulary = 5000,
                   .chunk = 64,
                   .parameters = 1 << 20});
  if (has_device(at::kCUDA)) {
    register_device(at::Device(at::kCUDA, 0), at::kBFloat16,
                    {.batch = 16,
                     .sequence = 512,
                     .heads = 16,
                     .d = 64,
                     .vocabulary = 250'880,
                     .chunk = 2048,
                     .parameters = 559'214'592});
  }
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  return tessera::benchmarks::run_benchmarks(argc, argv, &tessera::benchmarks::register_all);
}
