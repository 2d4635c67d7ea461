#include "benchmarks/strategies/bench_options.h"

#include "tessera/core/error.h"
#include "tests/support/test.hpp"

using namespace tessera;
using bench::Options;

namespace {

Options parsed(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "bench_strategies");
  Options options;
  options.parse(static_cast<int>(arguments.size()), const_cast<char**>(arguments.data()));
  return options;
}

}  // namespace

TEST_CASE("bench_strategies takes the flags of the programs") {
  const Options theirs = parsed({"--strategy",
                                 "fsdp",
                                 "--per_device_train_batch_size",
                                 "8",
                                 "--gradient_accumulation_steps",
                                 "2",
                                 "--max_seq_length",
                                 "64",
                                 "--max_steps",
                                 "3",
                                 "--max_grad_norm",
                                 "2",
                                 "--dtype",
                                 "bf16",
                                 "--gradient_checkpointing",
                                 "--keep_activations",
                                 "--prefetch_blocks",
                                 "2",
                                 "--fsdp_unit_numel",
                                 "1000",
                                 "--reshard_after_forward",
                                 "false",
                                 "--pipeline_parallel",
                                 "2",
                                 "--pipeline_schedule",
                                 "interleaved",
                                 "--pipeline_chunks",
                                 "3",
                                 "--pipeline_balance",
                                 "memory",
                                 "--tensor_parallel",
                                 "2",
                                 "--sequence_parallel"});
  const Options ours = parsed({"--strategies",
                               "fsdp",
                               "--micro_batches",
                               "8",
                               "--accumulation",
                               "2",
                               "--seq",
                               "64",
                               "--steps",
                               "3",
                               "--clip",
                               "2",
                               "--dtype",
                               "bf16",
                               "--checkpointing",
                               "true",
                               "--keep_activations",
                               "true",
                               "--prefetch",
                               "2",
                               "--unit_numel",
                               "1000",
                               "--reshard",
                               "false",
                               "--pipeline",
                               "2",
                               "--schedule",
                               "interleaved",
                               "--chunks",
                               "3",
                               "--balance",
                               "memory",
                               "--tensor",
                               "2",
                               "--sequence_parallel",
                               "true"});
  CHECK(theirs.variant() == ours.variant());
  for (const char* key : {"strategies", "micro_batches", "accumulation", "seq", "steps", "pipeline",
                          "tensor", "checkpointing", "clip"}) {
    CHECK(theirs.text(key) == ours.text(key));
    CHECK(theirs.text(key) != Options().text(key));
  }
}

TEST_CASE("bench_strategies names a flag that it lacks") {
  CHECK_THROWS_AS(parsed({"--microbatches", "4"}), Error);
  CHECK_THROWS_AS(parsed({"--seq"}), Error);
  CHECK_THROWS_AS(parsed({"seq", "4"}), Error);
}
