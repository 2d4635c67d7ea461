// SPDX-License-Identifier: MIT
// Steps and evaluations left by an exception: thrown on all ranks they count as not made; otherwise
// the strategy is unusable.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <map>

#include "lib/testing/fuzz.h"
#include "lib/testing/player.h"
#include "lib/testing/whole_state.h"
#include "tessera/optim/adamw.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/watchdog.hpp"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;

namespace {

constexpr auto kLimit = std::chrono::seconds(20);

struct Planted : std::runtime_error {
  Planted() : runtime_error("planted") {}
};

// Where a rank's blocks throw; block "": nowhere.
struct Wire {
  std::string block;
  bool in_backward = false;
  const void* micro_batch = nullptr;  // identifies the micro-batch by its inputs' memory
  bool out_of_memory = false;

  void trip() const {
    if (!out_of_memory) throw Planted();
    throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "planted");
  }
};

class Wired : public Block {
 public:
  Wired(std::string name, std::unique_ptr<Block> block, std::shared_ptr<Wire> wire)
      : name_(std::move(name)), block_(std::move(block)), wire_(std::move(wire)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    const bool here =
        wire_->block == name_ && wire_->micro_batch == batch.input_ids.const_data_ptr();
    if (here && !wire_->in_backward) wire_->trip();
    at::Tensor output = block_->forward(hidden, batch, context);
    if (here && output.requires_grad()) {
      output.register_hook([wire = wire_](const at::Tensor&) { wire->trip(); });
    }
    return output;
  }
  std::vector<Parameter> parameters() override { return block_->parameters(); }
  std::vector<Buffer> buffers() override { return block_->buffers(); }

 private:
  std::string name_;
  std::unique_ptr<Block> block_;
  std::shared_ptr<Wire> wire_;
};

ModelSpec wired(ModelSpec model, const std::shared_ptr<Wire>& wire) {
  for (BlockBuilder& builder : model.blocks) {
    builder.build = [build = builder.build, name = builder.name, wire](const BuildContext& c) {
      return std::make_unique<Wired>(name, build(c), wire);
    };
  }
  return model;
}

struct Failure {
  const char* block;
  bool in_backward = false;
  size_t micro_batch = 0;
  bool evaluates = false, out_of_memory = false;
  int times = 1;
};

// Blocks of the model below: embedding, b0 (L) .. b5 (U), head.
const std::vector<Failure> kFailures{
    {"embedding"},
    {"b4", false, 1},
    {"head", false, 2, false, /*out_of_memory=*/true},
    {"b0", true, 2},
    {"b4", true, 1, false, /*out_of_memory=*/true, /*times=*/2},
    {"b4", false, 1, /*evaluates=*/true},
};

std::string to_text(const Failure& failure) {
  return concat(failure.block, failure.in_backward ? " backward" : " forward", ", micro-batch ",
                failure.micro_batch, failure.evaluates ? ", evaluating" : "");
}

struct Numbers {
  WholeState state;
  std::vector<double> losses, norms;
};

// One rank's part of a run.
class Rank {
 public:
  Rank(const FuzzCase& layout, Communicator& world)
      : work_(fuzz_families().at("toy").build(layout)),
        player_(world, {wired(work_.model, wire_), layout.mesh, layout.parallel,
                        make_adamw({.weight_decay = 0.1})}) {}
  Strategy& strategy() { return player_.strategy(); }
  const DeviceMesh& mesh() const { return player_.mesh(); }

  std::vector<MicroBatch> batches(uint64_t step, size_t count, int64_t rows) const {
    std::vector<MicroBatch> all;
    const auto rank = static_cast<uint64_t>(player_.data_rank());
    for (size_t m = 0; m < count; ++m) {
      const MicroBatch drawn = work_.batch(rows, 5, (step * 8 + rank) * 8 + m);
      all.push_back(make_micro_batch(drawn.input_ids, drawn.labels));
    }
    return all;
  }
  void train(uint64_t step, Numbers& numbers) {
    const StepRecord record = player_.train(batches(step, 2, 2));
    if (player_.rank() != 0) return;
    numbers.losses.push_back(record.loss);
    numbers.norms.push_back(record.norm);
  }
  // A larger step, or an evaluation, that throws on this rank if `fails`.
  void leave(const Failure& failure, bool fails = true) {
    const std::vector<MicroBatch> larger = batches(50, 3, 3);
    if (fails) {
      *wire_ = {failure.block, failure.in_backward,
                larger[failure.micro_batch].input_ids.const_data_ptr(), failure.out_of_memory};
    }
    try {
      failure.evaluates ? strategy().evaluate(larger) : strategy().forward_backward(larger);
    } catch (...) {
      *wire_ = {};
      throw;
    }
    *wire_ = {};
  }

 private:
  FuzzModel work_;
  std::shared_ptr<Wire> wire_ = std::make_shared<Wire>();
  Player player_;
};

FuzzCase layout_of(const std::string& line) {
  const bool has_model = line.find("blocks=") != std::string::npos;
  return parse_case("tie=first hidden=12 " + line + (has_model ? "" : " blocks=L6.D.Q3.L10.T.U1"));
}

void expect_left(Rank& rank, const Failure& failure) {
  try {
    rank.leave(failure);
  } catch (const Planted&) {
    return test::require(!failure.out_of_memory, "another exception");
  } catch (const c10::OutOfMemoryError&) {
    return test::require(failure.out_of_memory, "another exception");
  }
  test::require(false, "the failure was not planted");
}

void play(const FuzzCase& layout, const Failure* failure, Numbers& numbers) {
  test::run_ranks(layout.ranks(), [&](Communicator& world) {
    Rank rank(layout, world);
    rank.train(0, numbers);
    if (failure != nullptr) {
      for (int i = 0; i < failure->times; ++i) expect_left(rank, *failure);
      if (!failure->evaluates) {
        test::require_error(
            ErrorCode::kInvalidArgument, [&] { rank.strategy().optimizer_step(1e-2); },
            "an update behind a step that was left");
      }
    }
    rank.train(1, numbers);
    const double loss = rank.strategy().evaluate(rank.batches(9, 2, 2)).loss.item<double>();
    if (world.rank() == 0) numbers.losses.push_back(loss);
    rank.train(2, numbers);
    numbers.state.take(rank.strategy().state());
  });
}

void check_layouts(const std::vector<std::string>& lines) {
  test::limit_collectives(10);
  for (const std::string& line : lines) {
    const FuzzCase layout = layout_of(line);
    Numbers expected;
    play(layout, nullptr, expected);
    const auto state = expected.state.tensors();
    for (const Failure& failure : kFailures) {
      INFO(line << ": " << to_text(failure));
      const test::Watchdog watchdog(line + ": " + to_text(failure), kLimit);
      Numbers numbers;
      REQUIRE(error_of([&] { play(layout, &failure, numbers); }) == "no error");
      CHECK(numbers.losses == expected.losses);
      CHECK(numbers.norms == expected.norms);
      const auto tensors = numbers.state.tensors();
      CHECK(tensors.size() == state.size());
      for (const auto& [name, value] : state) {
        CHECK_NOTHROW(test::require_bit_equal(tensors.at(name), value, name));
      }
    }
  }
}

// Error of every call on an unusable strategy.
void expect_unusable(Rank& rank) {
  Strategy& strategy = rank.strategy();
  const auto batches = rank.batches(1, 2, 2);
  const std::map<std::string, std::function<void()>> calls{
      {"forward_backward", [&] { strategy.forward_backward(batches); }},
      {"evaluate", [&] { strategy.evaluate(batches); }},
      {"grad_norm_squared", [&] { strategy.grad_norm_squared(); }},
      {"scale_gradients", [&] { strategy.scale_gradients(at::ones({})); }},
      {"optimizer_step", [&] { strategy.optimizer_step(1e-2); }},
      {"visit_parameters", [&] { strategy.visit_parameters([](const auto&) {}); }},
      {"visit_gradients", [&] { strategy.visit_gradients([](const auto&) {}); }},
      {"state", [&] { strategy.state(); }},
  };
  for (const auto& [name, call] : calls) {
    const std::string said = test::require_error(ErrorCode::kUnavailable, call, name);
    test::require(said.find("cannot go on: ") != std::string::npos &&
                      said.find("newest checkpoint") != std::string::npos,
                  name, " says: ", said);
  }
}

// Only rank `alone` leaves the step and tries another; returns the others' first error.
std::string leave_alone(const std::string& line, int alone, const Failure& failure) {
  const FuzzCase layout = layout_of(line);
  std::vector<std::string> first(static_cast<size_t>(layout.ranks()));
  const test::Watchdog watchdog(line, kLimit);
  test::run_ranks(layout.ranks(), [&](Communicator& world) {
    Rank rank(layout, world);
    Numbers numbers;
    rank.train(0, numbers);
    const bool fails = world.rank() == alone;
    if (fails) {
      expect_left(rank, failure);
    } else {
      first[static_cast<size_t>(world.rank())] = test::require_error(
          ErrorCode::kUnavailable, [&] { rank.leave(failure, false); }, "a peer's step");
    }
    expect_unusable(rank);
  });
  std::string all;
  for (const std::string& text : first) all += text;
  return all;
}

}  // namespace

TEST_CASE("a step that all ranks leave by an exception counts as not made: data parallel") {
  check_layouts({"strategy=single", "strategy=ddp data=2 bucket_bytes=600",
                 "strategy=ddp data=3 bucket_bytes=600 overlap=0",
                 "strategy=zero1 data=2 bucket_bytes=600",
                 "strategy=zero1 data=3 bucket_bytes=600"});
}

TEST_CASE("a step that all ranks leave by an exception counts as not made: sharded") {
  check_layouts(
      {"strategy=zero2 data=2", "strategy=zero2 data=3 reduce_at_boundary=1",
       "strategy=zero3 data=2 persistence_threshold=20",
       "strategy=zero3 data=3 gradient_checkpointing=1", "strategy=fsdp data=2 fsdp_unit_numel=300",
       "strategy=zero2 data=2 coalesce_bytes=1000", "strategy=fsdp data=2 coalesce_bytes=1000",
       "strategy=fsdp data=3 reshard_after_forward=0", "strategy=fsdp data=4 shard_ranks=2"});
}

TEST_CASE("a step that all ranks leave by an exception counts as not made: offloaded, in 16 bits") {
  check_layouts(
      {"strategy=zero1 data=2 bucket_bytes=600 offload=optimizer offload_step=host",
       "strategy=zero2 data=3 offload=optimizer offload_step=device chunk_numel=100",
       "strategy=zero2 data=2 offload=optimizer offload_step=both chunk_numel=100",
       "strategy=zero3 data=2 offload=optimizer+params offload_step=host dtype=bf16",
       "strategy=zero2 data=2 gradient_checkpointing=1 offload=activations",
       "strategy=zero1 data=2 dtype=bf16 gradient_dtype=fp32 reduce_dtype=bf16 bucket_bytes=300",
       "strategy=fsdp data=2 dtype=bf16 gradient_dtype=fp32 reduce_dtype=bf16"});
}

TEST_CASE("a step that all ranks leave by an exception counts as not made: tensor parallel") {
  for (const char* line : {"strategy=single tensor=2", "strategy=zero3 data=2 tensor=2"}) {
    check_layouts({concat(line, " blocks=L6.D.Q3.C12.T.U1")});
  }
}

TEST_CASE("a rank that leaves a step alone ends the run of all, and every call says so") {
  test::limit_collectives(2);
  for (const auto& [line, failure] :
       std::vector<std::pair<std::string, Failure>>{{"strategy=ddp data=2", {"b4", false, 1}},
                                                    {"strategy=zero2 data=3", {"b0", true, 1}},
                                                    {"strategy=zero3 data=2", {"b4", false, 2}}}) {
    INFO(line);
    CHECK_THAT(leave_alone(line, 1, failure), contains("rank 1"));
  }
}

TEST_CASE("a stage that leaves a step ends the run of all at once") {
  test::limit_collectives(10);
  for (const char* line :
       {"strategy=ddp pipeline=2", "strategy=zero1 pipeline=2 pipeline_schedule=1f1b",
        "strategy=zero3 pipeline=2 data=2"}) {
    INFO(line);
    CHECK_THAT(leave_alone(line, 0, {"embedding", false, 1}),
               contains("rank 0: an exception has left a step of the pipeline: planted"));
    CHECK_THAT(leave_alone(line, layout_of(line).ranks() - 1, {"head", false, 0}),
               contains("an exception has left a step of the pipeline: planted"));
  }
}
