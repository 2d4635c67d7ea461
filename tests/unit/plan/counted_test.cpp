// SPDX-License-Identifier: MIT
// Counted operations against the CPU's real ones: equal outputs and allocations.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "lib/core/meta.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/kernels.h"
#include "tests/support/test.hpp"
#include "tests/unit/plan/counted_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Some LibTorch operations temporarily hold one more number per row.
bool is_near(int64_t planned, int64_t measured) {
  return static_cast<double>(std::abs(planned - measured)) <= 0.01 * static_cast<double>(measured);
}

Taken measured(const CountedCase& test) {
  const auto run = test.prepare(at::kCPU);
  run();
  const HostMemoryCounter counter;
  const Tensors outputs = run();
  const MemoryUse use = counter.use();
  return {described(outputs), use.allocated_bytes, use.peak_allocated_bytes};
}

}  // namespace

TEST_CASE("counted operations give and take what the CPU's do") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const CountedCase& test : counted_cases(type)) {
      const Taken plan = counted(test, at::kCPU), real = measured(test);
      INFO(beside(test, plan, real));
      CHECK(plan.outputs == real.outputs);
      CHECK(is_near(plan.kept, real.kept));
      // LibTorch's 16-bit products depend on the host's instructions.
      if (type == at::kFloat) CHECK(is_near(plan.most, real.most));
    }
  }
}

TEST_CASE("sums of many rows take on a GPU what LibTorch shares between its blocks") {
  // Measured on an H200 with LibTorch 2.11.
  constexpr int64_t kMeasured = 123'342'880;
  int found = 0;
  for (const CountedCase& test : counted_cases(at::kFloat)) {
    if (test.name.find("norm, backward") == std::string::npos) continue;
    if (test.name.find(" 5000x1024") == std::string::npos) continue;
    INFO(test.name);
    CHECK(counted(test, at::kCUDA).most == kMeasured);
    ++found;
  }
  CHECK(found == 4);
}

TEST_CASE(
    "packed rows in heads of 64 and 80 are attended to one by one on a GPU, where that is faster") {
  const MetaStandsFor stands(at::kCUDA);
  const auto by_sequence = [](std::vector<int64_t> lengths, int64_t d, at::ScalarType type,
                              double dropout = 0) {
    const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const at::Tensor x = at::empty({1, tokens, 8}, at::TensorOptions(at::kMeta).dtype(type));
    ops::SelfAttention attention{.heads = 2, .key_heads = 2};
    attention.dropout.probability = dropout;
    return ops::attends_to_sequences(x, attention, d, {}, make_packed_rows(lengths, tokens));
  };
  CHECK_FALSE(by_sequence({1024, 3}, 64, at::kBFloat16));
  CHECK_FALSE(by_sequence({1024, 3}, 64, at::kHalf));
  CHECK(by_sequence({1025, 3}, 64, at::kBFloat16));
  CHECK_FALSE(by_sequence({512, 3}, 80, at::kBFloat16));
  CHECK(by_sequence({513, 3}, 80, at::kBFloat16));
  CHECK(by_sequence({100, 3}, 96, at::kBFloat16));
  CHECK(by_sequence({100, 3}, 128, at::kBFloat16));
  CHECK_FALSE(by_sequence({100, 3}, 64, at::kFloat));  // the reference
  CHECK_FALSE(by_sequence({100, 3}, 64, at::kHalf, 0.1));
}

TEST_CASE("equal rows are attended to one by one on a GPU, where cuDNN would modify scores") {
  // Otherwise backward takes more than its gradient.
  const auto by_row = [](int64_t sequence, int64_t d, bool alibi) {
    const auto prepare = [=](at::Device device) {
      const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
      const at::Tensor slopes = at::ones({2}, options.dtype(at::kFloat));
      const ops::SelfAttention attention =
          alibi ? ops::alibi(slopes, d)
                : ops::SelfAttention{.heads = 2, .key_heads = 2, .scale = 1};
      const at::Tensor qkv = at::zeros({3, sequence, 6 * d}, options);
      const ops::AttentionOutput forward = ops::attention_forward(qkv, attention, {}, {});
      return [=] {
        return Tensors{ops::attention_backward(forward.output, qkv, attention, {}, forward, {})};
      };
    };
    const Taken plan = counted({.name = "", .prepare = prepare}, at::kCUDA);
    return plan.most == plan.kept;
  };
  CHECK(by_row(512, 64, true));
  CHECK(by_row(1024, 64, true));
  CHECK_FALSE(by_row(1025, 64, true));
  CHECK_FALSE(by_row(512, 64, false));
  CHECK(by_row(512, 80, true));
  CHECK_FALSE(by_row(513, 80, true));
  CHECK_FALSE(by_row(512, 80, false));
  CHECK_FALSE(by_row(512, 128, true));
}

TEST_CASE("attention to packed rows one by one takes nothing beside its gradient on a GPU") {
  int found = 0;
  for (const CountedCase& test : counted_cases(at::kBFloat16)) {
    if (test.name.find("attention, packed, backward") == std::string::npos) continue;
    const Taken plan = counted(test, at::kCUDA);
    INFO(test.name << ": " << plan.kept << " kept, most " << plan.most);
    const bool by_row =
        test.name.find("x64") != std::string::npos || test.name.find("x80") != std::string::npos;
    CHECK((plan.most == plan.kept) == by_row);
    ++found;
  }
  CHECK(found == 5);
}

TEST_CASE("peaks of LibTorch's attention are those measured on an H200") {
  const struct {
    const char* name;
    at::ScalarType type;
    int64_t peak;  // bytes
  } rows[] = {{"odd heads", at::kBFloat16, 2'826'264},
              {"there and back, odd heads", at::kBFloat16, 3'784'728},
              {"there and back, odd heads", at::kFloat, 3'589'632},
              {"there and back, trained mask", at::kBFloat16, 10'223'616},
              {"there and back, trained mask", at::kFloat, 20'447'232},
              {"there and back, shared key heads", at::kFloat, 44'040'192},
              {"there and back, narrow values", at::kFloat, 11'060'736}};
  constexpr int64_t kRounding = 4 << 10;
  for (const auto& row : rows) {
    const std::string name = concat("LibTorch's attention, ", row.name, " ", row.type);
    const auto cases = counted_cases(row.type);
    const auto found = std::ranges::find(cases, name, &CountedCase::name);
    REQUIRE(found != cases.end());
    const int64_t most = counted(*found, at::kCUDA).most;
    INFO(name << ": " << most << " planned, " << row.peak << " measured");
    CHECK(std::abs(most - row.peak) <= kRounding);
  }
}

TEST_CASE("LibTorch's attention keeps its output and one number a query on a GPU, and no scores") {
  constexpr int64_t kQueries = 2 * 8 * 384, kHead = 64, kMask = 2 * 384 * 384;
  const auto kept = [](const std::string& name, at::ScalarType type) {
    for (const CountedCase& test : counted_cases(type)) {
      if (test.name == concat("LibTorch's attention, ", name, " ", type)) {
        return counted(test, at::kCUDA).kept;
      }
    }
    return int64_t{0};
  };
  CHECK(kept("causal", at::kBFloat16) == kQueries * (2 * kHead + 4));
  CHECK(kept("causal", at::kFloat) == kQueries * (4 * kHead + 4));
  CHECK(kept("shared key heads", at::kBFloat16) == kQueries * (2 * kHead + 4));
  CHECK(kept("masked", at::kBFloat16) == kQueries * (2 * kHead + 4) + 2 * kMask);
  CHECK(kept("narrow values", at::kFloat) == kQueries * (4 * kHead + 4));
}
