// SPDX-License-Identifier: MIT
// Muon in every layout. The oracle updates whole matrices as torch's source does, from the
// strategy's gradients. Memory is compared with a dry run.
#include <ATen/ATen.h>

#include "lib/testing/fuzz.h"
#include "tests/fuzz/dry_memory.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

void check_lines(const std::vector<std::string>& lines) {
  const auto make = [](const ParallelConfig& config, const DeviceMesh& mesh) {
    return make_strategy(config, mesh);
  };
  for (const std::string& line : lines) {
    FuzzOptions options{.line = "optimizer=muon " + line};
    options.check_memory = compare_with_dry_run;
    options.print = [](const std::string&) {};
    const FuzzSummary summary = fuzz_layouts(make, options);
    INFO(line << "\n" << to_text(summary));
    CHECK(summary.held == 1);
  }
}

}  // namespace

TEST_CASE("Muon trains under every strategy as its oracle does") {
  check_lines({
      "groups=1",
      "strategy=ddp data=3 accumulation=2",
      "strategy=zero1 data=2 blocks=L6.L9.L4 max_norm=0.1",
      "strategy=zero2 data=3 accumulation=3 untargeted=ranks",
      "strategy=zero3 data=3 persistence_threshold=50",
      // Matrices spread over several shards.
      "strategy=zero3 data=2 persistence_threshold=0 blocks=L9.L32",
      "strategy=zero2 data=3 blocks=L32.L16 bucket_bytes=900",
      "strategy=fsdp data=3 blocks=C40.L17.C16 tensor=2",
      "strategy=fsdp data=2 blocks=L6.L9 overlap=0",
      "strategy=fsdp data=4 shard_ranks=2 blocks=L6.L9",
      "strategy=zero2 data=2 accumulation=4 calls=2 steps=3",
      "strategy=zero3 data=2 dtype=bf16",
      "strategy=fsdp data=2 dtype=fp16 loss_scale=1024 skip=1 steps=3",
      "strategy=zero2 data=2 bucket_bytes=300 blocks=L16.L32.L9",
  });
}

TEST_CASE("Muon trains around stages, with ties, cut matrices and state on the host") {
  check_lines({
      "strategy=zero2 data=2 pipeline=2 blocks=L6.L8.L5.L6",
      "strategy=ddp data=2 pipeline=2 blocks=L6.P.P.L6",
      "blocks=L6.T6.L6 strategy=zero3 data=2",
      "blocks=L6.L6 tie=first groups=1 strategy=zero2 data=2",
      "tensor=2 blocks=L6.C8.L6 strategy=zero1 data=2",
      "tensor=2 blocks=C6.C8 strategy=zero3 data=2 pipeline=2",
      "strategy=zero1 data=2 offload=optimizer offload_step=host accumulation=4 calls=2 steps=3",
      "strategy=zero2 data=2 offload=optimizer offload_step=device skip=1 steps=3",
      "strategy=zero3 data=2 offload=optimizer+params dtype=bf16",
  });
}

TEST_CASE("Muon's momentum goes on under another strategy and layout") {
  check_lines({
      "strategy=ddp data=2 steps=4 resume=2 then.strategy=ddp then.data=2",
      "strategy=zero3 data=2 accumulation=2 steps=4 resume=2 then.strategy=single then.data=1",
      "blocks=L6.L9.L4 steps=3 resume=1 accumulation=4 then.strategy=fsdp then.data=4 "
      "then.shard_ranks=2",
      "strategy=zero2 data=2 pipeline=2 blocks=L6.L8.L5.L6 steps=3 resume=1 then.strategy=zero3 "
      "then.data=2",
      "tensor=2 blocks=C8.C6 strategy=zero3 data=2 steps=3 resume=1 then.strategy=zero2 "
      "then.data=2",
      "strategy=zero3 data=2 offload=optimizer+params steps=3 resume=1 then.strategy=zero2 "
      "then.data=2",
      "strategy=zero1 data=2 steps=3 resume=1 then.strategy=zero2 then.data=2 "
      "then.offload=optimizer",
  });
}
