// SPDX-License-Identifier: MIT
// Memory messages of a run that cannot be planned.
#include "lib/run/run_memory.h"

#include <ATen/ATen.h>

#include "lib/run/layout.h"
#include "lib/run/memory_advice.h"
#include "lib/tools/plan/plan.h"
#include "tessera/comm/control_channel.h"
#include "tests/programs/train_options.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

namespace {

// A block that reads its values, which meta tensors lack.
class LooksBlock : public Block {
 public:
  explicit LooksBlock(at::Device device)
      : weight_(at::ones({1}, at::TensorOptions(device)).requires_grad_()) {}
  at::Tensor forward(const at::Tensor&, const MicroBatch& batch, const BlockContext&) override {
    const at::Tensor x = batch.input_ids.to(at::kFloat);
    return x.max().item<float>() > 0 ? x * weight_ : x;
  }
  std::vector<Parameter> parameters() override { return {{"weight", weight_}}; }

 private:
  at::Tensor weight_;
};

// device: where the block's parameters are; empty: the requested device.
Prepared unplannable(std::optional<at::Device> device = {}) {
  Prepared run;
  run.model.name = "looks";
  run.model.blocks.push_back({"only", [device](const BuildContext& context) {
                                return std::make_unique<LooksBlock>(
                                    device.value_or(context.device));
                              }});
  run.options.training.per_device_train_batch_size = 2;
  run.options.data.max_seq_length = 4;
  return run;
}

}  // namespace

TEST_CASE("a run whose blocks cannot run without memory goes on without a plan") {
  const Prepared run = unplannable();
  const AvailableMemory plenty{.host = int64_t{1} << 30};
  CHECK_FALSE(check_memory(unplannable(at::kCPU), at::kCPU, 1, 1, plenty));
  CHECK_FALSE(check_memory(run, at::kCPU, /*ranks=*/1, /*ranks_on_host=*/1, plenty));
  CHECK(memory_need(run, 1, /*on_gpu=*/false).find("not planned") != std::string::npos);
  const std::string advice = memory_advice(run, 1, "no memory left", /*on_gpu=*/false);
  CHECK(advice.starts_with("no memory left. "));
  CHECK(advice.find("--gradient_checkpointing") != std::string::npos);
}

TEST_CASE("a dozen layouts are refused before they allocate where 1 % of their plan is missing") {
  const char* lines[] = {
      "bloom-560m",
      "bloom-560m --dtype bf16 --per_device_train_batch_size 64",
      "bloom-560m --gradient_checkpointing --gradient_accumulation_steps 4",
      "bloom-560m --ranks 2 --strategy ddp",
      "bloom-560m --ranks 2 --strategy zero2 --offload optimizer",
      "bloom-1b7 --ranks 4 --strategy zero1",
      "bloom-3b --ranks 2 --strategy zero3 --offload optimizer+params --dtype bf16",
      "bloom-7b1 --ranks 4 --strategy fsdp --dtype bf16",
      "bloom-560m --ranks 2 --pipeline_parallel 2 --gradient_accumulation_steps 4",
      "bloom-560m --ranks 2 --tensor_parallel 2 --max_seq_length 1024",
      "gpt2 --per_device_train_batch_size 16",
      "llama-3.2-1b --packing --dtype bf16",
  };
  for (const char* line : lines) {
    const TrainOptions o = options_of(concat("--model_config ", line));
    const Prepared run = prepare_shapes(o, Program::kText);
    const PlannedHosts host{.card = card_named("cpu"), .ranks = o.run.ranks};
    double needed = 0;  // ranks of all stages share the host's memory
    const RunPlan plan = plan_run(run, o, host);
    for (const MemoryPlan& stage : plan.stages) {
      needed += (stage.tensors() + stage.state.host_bytes) * static_cast<double>(o.run.ranks) /
                static_cast<double>(plan.stages.size());
    }
    const auto check_with = [&](double share) {
      return check_memory(run, at::kCPU, o.run.ranks, o.run.ranks,
                          {.host = static_cast<int64_t>(needed * share)});
    };
    INFO(line << ": " << needed);
    CHECK(check_with(1.01));
    const testing::CountingAllocator counting;
    const std::string said = test::require_error(
        ErrorCode::kResourceExhausted, [&] { check_with(0.99); }, line);
    CHECK(said.find("are available") != std::string::npos);
    CHECK(testing::CountingAllocator::peak_bytes() < 1 << 20);
  }
}

TEST_CASE("activations that are kept are the first that a run is advised to give up") {
  const std::string lines = "--model_config bloom-560m --dtype bf16 --max_seq_length 64";
  const auto advice = [&](const std::string& flags, bool on_gpu) {
    const Prepared run = prepare_shapes(options_of(lines + flags), Program::kText);
    return memory_advice(run, /*ranks=*/1, "no memory left", on_gpu);
  };
  const std::string flag = "--save_norm_outputs false";
  CHECK(advice(" --save_norm_outputs", true).find("help: " + flag + " saves ") !=
        std::string::npos);
  // save_norm_outputs has no effect here.
  CHECK(advice(" --save_norm_outputs", false).find(flag) == std::string::npos);
  CHECK(advice(" --save_norm_outputs --gradient_checkpointing", true).find(flag) ==
        std::string::npos);
  CHECK(advice("", true).find(flag) == std::string::npos);
}

TEST_CASE("a batch beyond all reason is refused without planning every row of it") {
  const auto refused = [](const std::string& flags, ErrorCode code) {
    return test::require_error(
        code,
        [&] {
          const Prepared run = prepare_shapes(
              options_of("--model_config bloom-tiny --max_seq_length 64 " + flags), Program::kText);
          check_memory(run, at::kCPU, 1, 1, {.host = int64_t{1} << 30});
        },
        flags);
  };
  const auto says = [](const std::string& text, const std::string& piece) {
    INFO(text);
    CHECK(text.find(piece) != std::string::npos);
  };
  says(refused("--per_device_train_batch_size 16777216", ErrorCode::kResourceExhausted),
       "--per_device_train_batch_size 8388608 --gradient_accumulation_steps 2 saves");
  says(refused("--per_device_train_batch_size 16777217", ErrorCode::kInvalidArgument),
       "2^30 tokens are the most");
  // Packed rows are planned one by one.
  says(refused("--packing --per_device_train_batch_size 16777216", ErrorCode::kResourceExhausted),
       "of only 4096 rows");
}

TEST_CASE("a difference that rounds to nothing has no minus") {
  const std::string text = memory_text({{"activation", 2e6, 1.9999e6}, {"allocated", 3e6, 2e6}}, 0);
  CHECK_THAT(text, test::contains("+0.0   +0.0 %") && !test::contains("-0.0"));
  CHECK_THAT(text, test::contains("-1.0  -33.3 %"));
}

TEST_CASE("what was measured is written where there is no plan to stand beside it") {
  const Prepared run = unplannable();
  test::run_ranks(1, [&](Communicator& world) {
    const DeviceMesh mesh(world, {});
    RunMemory memory(mesh, planned_layout(run, run.options, /*world_size=*/1));
    memory.begin(Activity::kSteps);
    const at::Tensor ids = at::zeros({2, 4}, at::kLong);
    const MicroBatch batch = make_micro_batch(ids, ids);
    memory.next({&batch, 1});
    const at::Tensor held = at::empty({1000});
    memory.end();
    CommunicatorChannel control(world);
    const auto lines = memory.lines({.parameter_bytes = 4}, OffloadStep::kAuto, control);
    test::require(memory_text(lines, memory.rank()).empty(), "a table without a plan");
    for (const auto& [name, value] : memory_fields(lines, memory.rank())) {
      const bool planned = name.starts_with("plan_") && name != "plan_rank";
      test::require(!planned || std::holds_alternative<std::monostate>(value), name, " is known");
      test::require(name != "measured_parameter_bytes" || value == metrics::Value(int64_t{4}),
                    name);
    }
  });
}
