// SPDX-License-Identifier: MIT
// bench_strategies --profile.
#include "benchmarks/strategies/step_profile.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>

#include "benchmarks/strategies/profiler.h"
#include "lib/ops/update.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/kernels.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::bench;

namespace {

double part(const StepPhases& phases, const std::string& name) {
  for (const auto& part : phases.parts) {
    if (part.name == name) return part.seconds;
  }
  FAIL("no phase " << name);
  return 0;
}

void check_sum(const StepPhases& phases) {
  CHECK(std::abs(phases.sum_s() - phases.step_s) <= 0.01 * phases.step_s);
}

TimedStep timed(double step_s, double data_s, PhaseTimes phases) {
  return {.step_s = step_s, .data_s = data_s, .phases = phases};
}

KernelCall call(const std::string& name, double seconds, OperationWork work = {},
                const std::string& operation = "") {
  return {.name = name, .operation = operation, .seconds = seconds, .work = work};
}

const KernelCall& named(const Calls& calls, const std::string& name) {
  for (const KernelCall& call : calls.calls) {
    if (call.name == name) return call;
  }
  FAIL("no call of " << name);
  return calls.calls.front();
}

ProfiledEvent host(const std::string& name, uint64_t begin, uint64_t end, uint64_t id,
                   uint64_t thread = 1) {
  return {.name = name, .begin_ns = begin, .end_ns = end, .thread = thread, .id = id};
}

ProfiledEvent gpu(const std::string& name, uint64_t begin, uint64_t end, uint64_t issuer) {
  return {.name = name, .on_gpu = true, .begin_ns = begin, .end_ns = end, .issuer = issuer};
}

}  // namespace

TEST_CASE("profile: phases and what is in none sum to the step, on the CPU and on a GPU") {
  const PhaseTimes inside{.forward_s = 3,
                          .backward_s = 4,
                          .communication_s = 0.5,
                          .optimizer_s = 1,
                          .step_s = 9,
                          .copies_s = 2};
  const StepPhases cpu = phases_of({timed(10, 0.25, inside)}, /*on_gpu=*/false);
  check_sum(cpu);
  CHECK(part(cpu, "data") == 0.25);
  CHECK(part(cpu, "host wait") == 0);
  CHECK(part(cpu, "other") == 10 - 8.5 - 0.25);
  CHECK_FALSE(cpu.copies_s);

  // The host waited for rows longer than the stream was idle.
  const StepPhases on_gpu = phases_of({timed(10, 3, inside)}, /*on_gpu=*/true);
  check_sum(on_gpu);
  CHECK(part(on_gpu, "data") == 0.5);
  CHECK(part(on_gpu, "host wait") == 1);
  CHECK(part(on_gpu, "other") == 0);
  CHECK(on_gpu.copies_s == 2);

  const StepPhases mean = phases_of(
      {timed(10, 0, inside), timed(4, 0, {.forward_s = 1, .backward_s = 1, .step_s = 3})}, true);
  check_sum(mean);
  CHECK(mean.step_s == 7);
  CHECK(part(mean, "forward") == 2);
  CHECK(part(mean, "host wait") == 1);
}

TEST_CASE("profile: phases that exceed the step are refused, not scaled") {
  const PhaseTimes twice{.forward_s = 6, .backward_s = 6, .step_s = 10};
  CHECK_THAT(error_of(ErrorCode::kInternal, [&] { phases_of({timed(10, 0, twice)}, false); }),
             test::contains("counts some time twice"));
  CHECK_THAT(error_of(ErrorCode::kInternal, [&] { phases_of({}, false); }),
             test::contains("no step"));
}

TEST_CASE("profile: names of kernels lose return types, namespaces and arguments") {
  CHECK(short_name("void at::native::vectorized_elementwise_kernel<4, "
                   "at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, float)") ==
        "vectorized_elementwise_kernel");
  CHECK(short_name("void tessera::ops::cuda::(anonymous namespace)::adamw<c10::BFloat16>(Table)") ==
        "adamw");
  CHECK(
      short_name("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, 7>(P<int>)") ==
      "kernel");
  CHECK(short_name("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(Params)") ==
        "cutlass_80_tensorop_bf16_s16816gemm");
  CHECK(short_name("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT") ==
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT");
  CHECK(short_name("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)") ==
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL");
  CHECK(short_name("Memcpy DtoH (Device -> Pinned)") == "Memcpy DtoH (Device -> Pinned)");
}

TEST_CASE("profile: kernels are grouped, small ones are others, and work is known or is not") {
  const std::vector<KernelCall> calls{call("gemm", 0.2, {.flops = 100}, "linear_forward"),
                                      call("gemm", 0.2, {.flops = 100}, "linear_forward"),
                                      call("gemm", 0.5, {.flops = 100}, "logits_forward"),
                                      call("norm", 0.3, {.bytes = 60}),
                                      call("norm", 0.3),  // unknown
                                      call("copy", 0.1, {.bytes = 40}),
                                      call("small", 0.01, {.bytes = 1}),
                                      call("tiny", 0.005)};
  const auto rows =
      kernel_rows(calls, /*steps=*/2, /*step_s=*/1, {.flops_per_s = 1000, .bytes_per_s = 800});
  REQUIRE(rows.size() == 5);
  CHECK(rows[0].name == "norm");
  CHECK(rows[0].calls == 1);
  CHECK_FALSE(rows[0].bytes);
  CHECK_FALSE(rows[0].of_ceiling);
  CHECK(rows[1].operation == "logits_forward");
  CHECK(rows[1].calls == 0.5);
  CHECK(rows[1].flops == 50);
  CHECK_FALSE(rows[1].bytes);
  CHECK(std::abs(*rows[1].of_ceiling - 0.2) < 1e-9);
  CHECK(rows[2].operation == "linear_forward");
  CHECK(std::abs(*rows[2].of_ceiling - 0.5) < 1e-9);
  CHECK(rows[3].name == "copy");
  CHECK(std::abs(*rows[3].of_ceiling - 0.5) < 1e-9);
  CHECK(rows[4].name == "others");
  CHECK(rows[4].calls == 1);
  CHECK(std::abs(rows[4].seconds - 0.0075) < 1e-12);
  CHECK_FALSE(rows[4].bytes);
  CHECK_FALSE(kernel_rows(calls, 2, 1, {})[1].of_ceiling);
}

TEST_CASE("profile: kernels have the work of the range that launched them") {
  const std::string product = range_name("linear_forward", {.flops = 4096});
  const std::string norm = range_name("norm_backward", {.bytes = 512});
  const Calls calls = calls_of(
      {host(product, 0, 100, 1), host("aten::empty", 10, 20, 2), host("aten::addmm", 30, 90, 3),
       host(norm, 200, 300, 4), host(norm, 400, 500, 5), host("aten::fill_", 600, 700, 6),
       // on another thread, concurrently with the first
       host(range_name("square_sum", {.bytes = 64}), 0, 100, 7, /*thread=*/2),
       gpu("void ns::gemm<1>(int)", 1000, 1600, 3), gpu("splitKreduce", 1600, 1700, 1),
       gpu("Memset (Device)", 1700, 1710, 4), gpu("norm", 1710, 1800, 4),
       gpu("columns", 1800, 1810, 5), gpu("other_norm", 1805, 1900, 5), gpu("fill", 1900, 2000, 6),
       gpu("squares", 2500, 2600, 7), gpu("by_nobody", 2600, 2700, 0)},
      /*on_gpu=*/true);
  CHECK(calls.calls.size() == 9);
  CHECK(named(calls, "gemm").operation == "linear_forward");
  CHECK(named(calls, "gemm").work.flops == 4096);
  CHECK(named(calls, "splitKreduce").work.flops == 0);
  CHECK(named(calls, "norm").work.bytes == 512);
  CHECK(named(calls, "Memset (Device)").work.bytes == 0);
  // The bytes of each of the two kernels are unknown.
  CHECK(named(calls, "other_norm").operation == "norm_backward");
  CHECK(named(calls, "other_norm").work.bytes == 0);
  CHECK(named(calls, "fill").operation.empty());
  CHECK(named(calls, "squares").work.bytes == 64);
  CHECK(named(calls, "by_nobody").operation.empty());
  CHECK(std::abs(calls.covered_s - 1200e-9) < 1e-15);
}

TEST_CASE("profile: operators take the time that those they call do not take") {
  const Calls calls =
      calls_of({host("aten::linear", 0, 100, 1), host("aten::addmm", 10, 90, 2),
                host(range_name("cpu::adamw_update", {.bytes = 256}), 200, 260, 3),
                host("aten::empty", 210, 215, 4),
                // contains the operators below
                host(range_name("gelu_tanh_forward", {.bytes = 64}), 300, 400, 5),
                host("aten::gelu", 310, 390, 6),
                host(range_name("linear_backward_weight", {.flops = 99}), 400, 500, 7),
                host("aten::addmm_", 410, 490, 8), host("aten::add_", 490, 495, 9),
                host(range_name("cpu::square_sum", {.bytes = 32}), 500, 600, 10),
                host("aten::pow", 510, 590, 11), gpu("kernel", 0, 1000, 1)},
               /*on_gpu=*/false);
  CHECK(calls.calls.size() == 11);
  CHECK(named(calls, "tessera::square_sum").work.bytes == 0);
  CHECK(named(calls, "tessera::gelu_tanh_forward").work.bytes == 0);
  CHECK(named(calls, "aten::gelu").work.bytes == 0);
  CHECK(named(calls, "tessera::linear_backward_weight").work.flops == 0);
  CHECK(named(calls, "aten::addmm_").work.flops == 99);
  CHECK(named(calls, "aten::add_").work.flops == 0);
  CHECK(std::abs(named(calls, "aten::linear").seconds - 20e-9) < 1e-15);
  CHECK(std::abs(named(calls, "aten::addmm").seconds - 80e-9) < 1e-15);
  CHECK(named(calls, "tessera::adamw_update").work.bytes == 256);
  CHECK(std::abs(calls.covered_s - 460e-9) < 1e-15);
}

TEST_CASE("profile: LibTorch's profiler sees operators, products and our own operations") {
  const at::Tensor x = at::ones({16, 32}), weight = at::ones({64, 32});
  Profiler profiler(at::kCPU);
  at::mm(x, weight.t());
  const std::vector<at::Tensor> tensors{x, weight};
  ops::square_sum(tensors);
  ops::logits_forward(x, weight);
  const Calls calls = calls_of(profiler.stop(), /*on_gpu=*/false);
  const KernelCall& product = named(calls, "aten::mm");
  CHECK(product.work.flops == 2 * 16 * 32 * 64);
  CHECK(product.operation.empty());
  CHECK(product.seconds > 0);
  CHECK(named(calls, "tessera::square_sum").work.bytes == (16 * 32 + 64 * 32) * 4);
  bool inside = false;
  for (const KernelCall& call : calls.calls) {
    inside |= call.name != "tessera::logits_forward" && call.operation == "logits_forward";
  }
  CHECK(inside);
  CHECK(calls.covered_s > 0);
}

TEST_CASE("profile: operations know what they compute and move") {
  const int64_t rows = 6, in = 8, out = 16;
  const at::Tensor x = at::ones({2, 3, in}), weight = at::ones({out, in});
  const at::Tensor y = at::ones({2, 3, out}), sum = at::zeros({out, in});
  const at::Tensor flat = y.view({rows, out}).clone(), row_loss = at::zeros({rows});
  const at::Tensor labels = at::zeros({rows}, at::kLong);
  const at::Tensor qkv = at::ones({2, 3, 24});  // two heads of four
  const ops::SelfAttention attention{.heads = 2, .key_heads = 2};
  const PackedRows packed = make_packed_rows({1, 2, 3}, 3);
  Profiler profiler(at::kCPU);
  ops::linear_forward(x, weight, {});
  ops::linear_backward_input(y, weight);
  ops::linear_backward_weight(y, x, sum);
  ops::attention_forward(qkv, attention, {});
  ops::attention_forward(qkv, attention, {}, packed);
  ops::attention_forward(qkv, attention, at::ones({2, 3}, at::kBool));
  ops::layer_norm_forward(x, at::ones({in}), at::zeros({in}), 1e-5);
  ops::swiglu_forward(y);
  ops::cross_entropy_(flat, labels, {}, row_loss);
  ops::cross_entropy_(flat, labels, at::ones({}), row_loss);
  const at::Tensor state[] = {at::ones({10}), at::ones({10}), at::ones({10}), at::ones({10})};
  const std::vector<ops::AdamWRange> ranges{{state[0], state[1], state[2], state[3]}};
  ops::adamw_update(ranges, {}, {.learning_rate = at::ones({1}), .step_count = at::ones({1})});
  std::map<std::string, std::vector<double>> flops, bytes;
  for (const ProfiledEvent& event : profiler.stop()) {
    const auto range = parse_range_name(event.name);
    if (!range) continue;
    flops[range->operation].push_back(range->work.flops);
    bytes[range->operation].push_back(range->work.bytes);
  }
  using Numbers = std::vector<double>;
  const double product = 2 * rows * in * out;
  CHECK(flops["linear_forward"] == Numbers{product});
  CHECK(flops["linear_backward_input_out"] == Numbers{product});
  CHECK(flops["linear_backward_weight"] == Numbers{product});
  CHECK(bytes["linear_forward"] == Numbers{0});
  // Two products below the diagonal: 2 x 8 columns x half of the squares of lengths.
  CHECK(flops["attention_forward"] == Numbers{16 * (9 + 9), 16 * (1 + 4 + 9), 0});
  CHECK(bytes["layer_norm_forward"] == Numbers{2 * rows * in * 4});
  CHECK(bytes["swiglu_forward"] == Numbers{1.5 * rows * out * 4});
  CHECK(bytes["cross_entropy_"] == Numbers{rows * out * 4, 2 * rows * out * 4});
  CHECK(bytes["adamw_update"] == Numbers{10 * 28});
}

TEST_CASE("profile: ranges carry their work in their names, other names are nobody's") {
  const auto both = parse_range_name(range_name("rotary_", {.flops = 3e12, .bytes = 12}));
  REQUIRE(both);
  CHECK(both->operation == "rotary_");
  CHECK(both->work.flops == 3e12);
  CHECK(both->work.bytes == 12);
  CHECK_FALSE(both->own_code);
  CHECK(parse_range_name(range_name("cpu::square_sum", {}))->own_code);
  CHECK(parse_range_name(range_name("cpu::square_sum", {}))->operation == "square_sum");
  const auto neither = parse_range_name(range_name("clipping", {}));
  REQUIRE(neither);
  CHECK(neither->work.flops == 0);
  CHECK(neither->work.bytes == 0);
  CHECK_FALSE(parse_range_name("aten::mm"));
}

TEST_CASE("profile: the table's columns, the line for programs, and ceilings of known cards") {
  StepProfile profile{.name = "bloom-tiny/ddp/mb4",
                      .ranks = 2,
                      .steps = 5,
                      .on_gpu = true,
                      .phases = phases_of({timed(10, 0, {.forward_s = 9, .step_s = 9})}, true),
                      .profiled_step_s = 12,
                      .covered_s = 9,
                      .ceilings = ceilings_of("NVIDIA H200", at::kBFloat16)};
  profile.rows = kernel_rows({call("gemm", 15, {.flops = 79e12}, "linear_forward"), call("x", 30)},
                             5, 12, profile.ceilings);
  const std::string text = profile_text(profile);
  for (const char* expected :
       {"kernel", "operation", "calls", "ms", "share", "GFLOP", "MB", "of ceiling",
        "linear_forward", "25.0 %", "(no kernel runs)", "host wait", "100.0 %", "rank 0", "exposed",
        "790 TFLOP/s, memory 4245 GB/s"}) {
    CHECK_THAT(text, test::contains(expected));
  }
  const Json json = Json::parse(profile_json(profile), {}, "line");
  CHECK(json.at("profile").as_string() == "bloom-tiny/ddp/mb4");
  double sum = 0;
  for (const auto& [name, seconds] : json.at("phases").members()) sum += seconds.as_double();
  CHECK(std::abs(sum - json.at("step_s").as_double()) < 1e-9);
  const Json row = json.at("kernels").at(1);
  CHECK(row.at("name").as_string() == "gemm");
  CHECK(std::abs(row.at("share_ratio").as_double() - 0.25) < 1e-12);
  CHECK(row.at("bytes").is_null());
  CHECK(json.at("rest_s").as_double() == 3);

  CHECK(ceilings_of("cpu", at::kFloat).flops_per_s == 0);
  CHECK(ceilings_of("NVIDIA H100 80GB HBM3", at::kHalf).flops_per_s == 989.4e12);
  CHECK(ceilings_of("NVIDIA H200", at::kFloat).flops_per_s < 500e12);
  profile.rows.clear();
  CHECK_THAT(profile_text(profile), test::contains("None was recorded"));
}
