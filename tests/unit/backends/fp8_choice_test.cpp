// SPDX-License-Identifier: MIT
// The layers that fp8 auto takes, and how they are measured.
#include "backends/common/fp8_choice.h"

#include <ATen/ATen.h>

#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kMeasuredWords = 31;

MicroBatch measured_batch() { return toy_micro_batch({.vocabulary = kMeasuredWords}, 2, 6, 5); }

ModelSpec measured_model(const std::string& family) {
  return causal(
      sized(family, {.vocabulary = kMeasuredWords, .hidden = 16, .heads = 4, .layers = 2}));
}

}  // namespace

TEST_CASE("fp8 auto takes the layers that save a hundredth of a block's time") {
  const Fp8Layers layers =
      fastest_fp8_layers({.off = 100, .qkv = 98, .o = 99.5, .up = 80, .down = 120});
  CHECK(layers == Fp8Layers{.qkv = true, .o = false, .up = true, .down = false});
  CHECK(!fastest_fp8_layers({}).any());
  CHECK(fastest_fp8_layers({.off = 9, .qkv = 8, .o = 8, .up = 8, .down = 8}).all());
}

TEST_CASE("names of layers in 8 bits are read back") {
  for (int bits = 0; bits < 16; ++bits) {
    const Fp8Layers layers{
        .qkv = (bits & 1) != 0, .o = (bits & 2) != 0, .up = (bits & 4) != 0, .down = bits >= 8};
    CHECK(fp8_layers_of(name_of(layers)) == layers);
  }
  CHECK(name_of(Fp8Layers{.o = false, .down = false}) == "qkv,up");
  CHECK(fp8_layers_of("up,qkv") == Fp8Layers{.o = false, .down = false});
}

TEST_CASE("fp8 auto measures every layer of a block, alike on all ranks") {
  for (const std::string family : {"bloom", "llama"}) {
    std::array<Fp8Times, 2> of_rank;
    test::run_ranks(2, [&](Communicator& comm) {
      of_rank[static_cast<size_t>(comm.rank())] =
          measure_fp8(measured_model(family), {.seed = 3}, at::kFloat, measured_batch(), comm);
    });
    const auto& [times, others] = of_rank;
    INFO(family);
    for (double Fp8Times::*time :
         {&Fp8Times::off, &Fp8Times::qkv, &Fp8Times::o, &Fp8Times::up, &Fp8Times::down}) {
      CHECK(times.*time > 0);
      CHECK(times.*time == others.*time);
    }
  }
}

TEST_CASE("fp8 auto leaves models without such products, and CPUs, in the compute dtype") {
  test::run_ranks(1, [&](Communicator& comm) {
    const Fp8Times times =
        measure_fp8(toy_language_model(), {.seed = 3}, at::kFloat, measured_batch(), comm);
    test::require(times.off == 0, "a block without products in 8 bits was measured");
    const Fp8Layers layers = measure_fp8_layers(measured_model("llama"), {.seed = 3}, at::kFloat,
                                                measured_batch(), comm);
    test::require(!layers.any(), "a CPU has products in 8 bits");
  });
}
