// SPDX-License-Identifier: MIT
// Products of decoder layers in 16 and in 8 bits. "codes": of operands in 8 bits already; "casts":
// with the casts of activations and gradients, not those of weights, which serve a step. "largest",
// "rows", "columns", "both": the passes over x alone, in GB/s of what they read and write.
//   bench_fp8 --benchmark_filter=cuda/llama-3.1-8b
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <string>
#include <utility>
#include <vector>

#include "benchmarks/ops/timing.h"
#include "lib/ops/fp8.h"
#include "tessera/ops/kernels.h"

namespace tessera::benchmarks {
namespace {

using Call = std::function<void()>;

constexpr at::ScalarType kValues = at::kFloat8_e4m3fn, kGradients = at::kFloat8_e5m2;
constexpr int kTuned = 40;  // calls in which products of a new shape are tuned

struct Shape {
  std::string model;
  int64_t tokens, out, in;
};

// Queries, keys and values; output; gate and up; down.
std::vector<Shape> shapes_on_gpu() {
  constexpr int64_t kTokens = 8192;
  std::vector<Shape> shapes;
  const auto add = [&](const char* model, int64_t hidden, int64_t qkv, int64_t up, int64_t inner) {
    shapes.push_back({model, kTokens, qkv, hidden});
    shapes.push_back({model, kTokens, hidden, hidden});
    shapes.push_back({model, kTokens, up, hidden});
    shapes.push_back({model, kTokens, hidden, inner});
  };
  add("bloom-560m", 1024, 3072, 4096, 4096);
  add("llama-3.2-1b", 2048, 3072, 16384, 8192);
  add("bloom-3b", 2560, 7680, 10240, 10240);
  add("llama-3.1-8b", 4096, 6144, 28672, 14336);
  return shapes;
}

// A layer's operands in 16 bits, made at the first use of any of its benchmarks.
struct Layer {
  at::Tensor x, w, dy, dw;
  Layer(const Shape& s, at::Device device) {
    const auto draw = [&](at::IntArrayRef size) {
      return at::randn(size, at::TensorOptions(at::kBFloat16).device(device));
    };
    x = draw({s.tokens, s.in}), w = draw({s.out, s.in});
    dy = draw({s.tokens, s.out}), dw = draw({s.out, s.in});
  }
};

enum class Product { kForward, kInput, kWeight };

Call sixteen_bit(const Layer& l, Product product) {
  if (product == Product::kForward) return [=] { ops::linear_forward(l.x, l.w, {}); };
  if (product == Product::kInput) return [=] { ops::linear_backward_input(l.dy, l.w); };
  return [=] { ops::linear_backward_weight(l.dy, l.x, l.dw); };
}

// The product's operands, [rows, inner] each, and the format of the left one.
struct Operands {
  at::Tensor left, right;
  at::ScalarType of_left;
};

Operands operands(const Layer& l, Product product) {
  if (product == Product::kForward) return {l.x, l.w, kValues};
  if (product == Product::kInput) return {l.dy, l.w.t(), kGradients};
  return {l.dy.t(), l.x.t(), kGradients};
}

Call eight_bit(const Layer& l, Product product, Fp8 scaling, bool casts) {
  const Operands o = operands(l, product);
  const auto left = [=] { return ops::fp8_matrix(o.left, o.of_left, scaling); };
  const auto right = [=] { return ops::fp8_matrix(o.right, kValues, scaling); };
  const ops::Fp8Matrix kept_left = left(), kept_right = right();
  const bool adds = product == Product::kWeight;
  return [=] {
    const ops::Fp8Matrix a = casts ? left() : kept_left;
    const ops::Fp8Matrix b = casts && adds ? right() : kept_right;
    if (casts && adds) {
      ops::fp8_product(a, b, at::kBFloat16, {.result = l.dw, .add = true});
    } else {
      ops::fp8_product(a, b, at::kBFloat16);
    }
  };
}

// amount: what a call does, in the rate's unit.
void run(benchmark::State& state, const Call& call, at::Device device, const char* rate,
         double amount) {
  for (int i = 0; i < (device.is_cuda() ? kTuned : 0); ++i) call();
  double total = 0;
  for (auto step : state) {
    (void)step;
    const double time = seconds(device, call);
    state.SetIterationTime(time);
    total += time;
  }
  state.counters[rate] = amount * static_cast<double>(state.iterations()) / total;
}

// Passes over x.
void register_casts(at::Device device, const Shape& s, const std::string& shape) {
  struct Pass {
    const char* name;
    bool rows, columns;
  };
  for (const Pass pass : {Pass{"largest", false, false},
                          {"rows", true, false},
                          {"columns", false, true},
                          {"both", true, true}}) {
    const auto call = [=](benchmark::State& state) {
      const Layer layer(s, device);
      const at::Tensor x = layer.x, largest = ops::fp8_largest(x, Fp8::kTensorwise);
      const Call made = [=] {
        if (!pass.rows && !pass.columns) {
          ops::fp8_largest(x, Fp8::kTensorwise);
        } else {
          ops::fp8_layouts(x, largest, kValues, {.rows = pass.rows, .columns = pass.columns});
        }
      };
      const double bytes = double(x.numel()) * (2 + pass.rows + pass.columns);
      run(state, made, device, "GB/s", bytes / 1e9);
    };
    benchmark::RegisterBenchmark((shape + "x/" + pass.name).c_str(), call)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

void register_shape(at::Device device, const Shape& s) {
  const double flops = 2.0 * double(s.tokens) * double(s.out) * double(s.in);
  const std::string shape = (device.is_cpu() ? "cpu/" : "cuda/") + s.model + "/" +
                            std::to_string(s.out) + "x" + std::to_string(s.in) + "/";
  const auto add = [&](const std::string& name, const std::function<Call(const Layer&)>& make) {
    benchmark::RegisterBenchmark((shape + name).c_str(),
                                 [=](benchmark::State& state) {
                                   const Layer layer(s, device);
                                   run(state, make(layer), device, "TFLOP/s", flops / 1e12);
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  };
  register_casts(device, s, shape);
  for (const auto& [name, product] : {std::pair("forward", Product::kForward),
                                      {"input", Product::kInput},
                                      {"weight", Product::kWeight}}) {
    add(name + std::string("/bf16"), [=](const Layer& l) { return sixteen_bit(l, product); });
    for (const auto& [kind, scaling] :
         {std::pair("tensorwise", Fp8::kTensorwise), {"rowwise", Fp8::kRowwise}}) {
      for (const bool casts : {false, true}) {
        add(std::string(name) + "/" + kind + (casts ? "/casts" : "/codes"),
            [=](const Layer& l) { return eight_bit(l, product, scaling, casts); });
      }
    }
  }
}

void register_all() {
  register_shape(at::kCPU, {"small", 32, 96, 64});
  if (!has_device(at::kCUDA)) return;
  for (const Shape& shape : shapes_on_gpu()) register_shape(at::Device(at::kCUDA, 0), shape);
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  return tessera::benchmarks::run_benchmarks(argc, argv, &tessera::benchmarks::register_all);
}
