// SPDX-License-Identifier: MIT
// Moments in bf16 and in 8 bits, and split masters: equal bits in every strategy, also through
// checkpoints.
#include <ATen/ATen.h>

#include "lib/testing/fuzz_run.h"
#include "lib/testing/player.h"
#include "lib/testing/whole_state.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/core/error.h"
#include "tessera/model/parameter_groups.h"
#include "tessera/models/language_model.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int kSteps = 3, kStop = 1, kMicroBatches = 4;

using Tensors = std::map<std::string, at::Tensor>;

// Only one micro-batch of a step has targets, so gradients have equal bits for any order of sums.
struct Job {
  FuzzModel model;
  AdamWConfig adamw = {.weight_decay = 0.1};

  MicroBatch batch(int step, int place) const {
    const auto seed = static_cast<uint64_t>(step * kMicroBatches + place);
    const MicroBatch drawn = model.batch(2, 5, seed);
    const at::Tensor& labels = drawn.labels;
    if (place != step % kMicroBatches) labels.fill_(kIgnoredLabel);
    return make_micro_batch(drawn.input_ids, labels);
  }
};

// A toy whose embedding and matrices have several moment blocks of 256, the last ones shorter.
Job toy_job(MomentsDtype moments, const std::string& model) {
  Job job{fuzz_families().at("toy").build(parse_case(model))};
  job.adamw.moments = moments;
  job.adamw.min_8bit_size = 100;
  return job;
}

using Visit = std::function<void(Player&)>;

void play_job(const std::string& line, const Job& job, const Visit& visit) {
  const FuzzCase layout = parse_case(line);
  play({.model = job.model.model,
        .mesh = layout.mesh,
        .parallel = layout.parallel,
        .optimizer = make_adamw(job.adamw),
        .seed = 5},
       visit);
}

// Steps [first, end).
void train(Player& player, const Job& job, int first, int end) {
  const Communicator& data = player.mesh().axis(Axis::kData);
  const int share = kMicroBatches / data.size();
  for (int step = first; step < end; ++step) {
    std::vector<MicroBatch> mine;
    for (int m = 0; m < share; ++m) mine.push_back(job.batch(step, data.rank() * share + m));
    player.strategy().forward_backward(mine);
    player.strategy().optimizer_step(1e-2);
  }
}

struct States {
  WholeState stopped, last;
};

void run(const std::string& line, const Job& job, States& states) {
  play_job(line, job, [&](Player& player) {
    train(player, job, 0, kStop);
    states.stopped.take(player.strategy().state());
    train(player, job, kStop, kSteps);
    states.last.take(player.strategy().state());
  });
}

void check_same(const WholeState& actual, const Tensors& b) {
  CHECK(actual.problem() == "");
  const Tensors a = actual.tensors();
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : b) {
    REQUIRE(a.contains(name));
    CHECK_NOTHROW(test::require_bit_equal(a.at(name), tensor, name));
  }
}

void check_same(const WholeState& actual, const WholeState& expected) {
  check_same(actual, expected.tensors());
}

// Compares every layout with one rank, also when it resumes from that rank's state.
void check_layouts(const Job& job, const std::vector<std::string>& layouts) {
  States alone;
  run("strategy=single", job, alone);
  for (const std::string& line : layouts) {
    INFO(line);
    States states;
    run(line, job, states);
    check_same(states.stopped, alone.stopped);
    check_same(states.last, alone.last);
    WholeState resumed;
    play_job(line, job, [&](Player& player) {
      alone.stopped.give(player.strategy().state());
      player.strategy().state_restored();
      train(player, job, kStop, kSteps);
      resumed.take(player.strategy().state());
    });
    check_same(resumed, alone.last);
  }
}

const std::vector<std::string> kLayouts{
    "strategy=ddp data=2",
    "strategy=zero1 data=4",
    "strategy=zero2 data=2 reduce_at_boundary=1",
    "strategy=zero3 data=4 persistence_threshold=200",
    "strategy=fsdp data=4 fsdp_unit_numel=900",
    "strategy=fsdp data=4 shard_ranks=2",
    "strategy=zero1 data=2 offload=optimizer offload_step=host offload_threads=2",
    "strategy=zero2 data=2 offload=optimizer offload_step=device chunk_numel=100",
    "strategy=zero1 data=2 offload=optimizer offload_step=host offload_device_bytes=2000",
    "strategy=zero3 data=2 offload=optimizer+params offload_step=host",
    "strategy=zero3 data=4 offload=optimizer+params offload_step=device chunk_numel=700",
    "strategy=ddp pipeline=2 data=2",
    "strategy=zero3 pipeline=3 pipeline_schedule=1f1b",
    "strategy=zero1 pipeline=2 data=2 pipeline_schedule=interleaved pipeline_chunks=2 "
    "offload=optimizer offload_step=host",
    "strategy=zero2 data=2 offload=optimizer offload_step=both chunk_numel=300",
    "strategy=zero3 data=2 offload=optimizer+params offload_step=both chunk_numel=700",
    "strategy=zero1 data=2 offload=optimizer offload_step=both offload_device_bytes=2000",
};

Job tensor_job(int64_t hidden, const std::string& family = "gpt2") {
  const auto config = sized(family, {.vocabulary = 31,
                                     .hidden = hidden,
                                     .heads = 4,
                                     .layers = 1,
                                     .inner = 512,
                                     .key_heads = 4,
                                     .head_dim = hidden / 4,
                                     .max_positions = 64,
                                     .dropout = 0});
  Job job;
  job.model.model = causal(config);
  job.model.batch = [](int64_t rows, int64_t length, uint64_t seed) {
    return toy_micro_batch({.vocabulary = 31}, rows, length, seed);
  };
  job.adamw.moments = MomentsDtype::kInt8;
  return job;
}

}  // namespace

TEST_CASE("moments in bf16 and 8 bits have the same bits under every strategy") {
  const std::string model = "blocks=L24.Q3.L30.T.L10f tie=first hidden=12 vocabulary=101";
  check_layouts(toy_job(MomentsDtype::kInt8, model), kLayouts);
  check_layouts(toy_job(MomentsDtype::kBFloat16, model), kLayouts);
}

TEST_CASE("8-bit moments of 16-bit training and of Adam have the same bits, too") {
  Job job = toy_job(MomentsDtype::kInt8, "blocks=L24.L30 tie=none hidden=12 vocabulary=101");
  job.adamw.adam_w_mode = false;
  States alone;
  run("strategy=single dtype=bf16", job, alone);
  for (const std::string line : {"strategy=zero3 data=4", "strategy=zero1 data=2 offload=optimizer",
                                 "strategy=fsdp data=2 offload=optimizer offload_step=device"}) {
    INFO(line);
    States states;
    run(line + " dtype=bf16", job, states);
    check_same(states.last, alone.last);
  }
}

// Whole masters on the host, split on the device.
TEST_CASE("masters of bf16 parameters have the same bits in one tensor and in two") {
  for (const auto moments : {MomentsDtype::kFloat32, MomentsDtype::kBFloat16}) {
    const Job job = toy_job(moments, "blocks=L24.Q3.L30.T.L10f tie=first hidden=12");
    States alone, other;
    run("strategy=single dtype=bf16", job, alone);
    run("strategy=single dtype=bf16", job, other);
    // Masters midway between bf16 values, as another run may have saved.
    const WholeState& middles = other.stopped;
    for (const auto& [name, tensor] : middles.tensors()) {
      if (!name.ends_with(" parameter") || tensor.scalar_type() != at::kFloat) continue;
      tensor.view(at::kInt).bitwise_and_(0x7FFF0000).bitwise_or_(0x8000);
    }
    std::optional<Tensors> stopped, last;
    for (const std::string& line : kLayouts) {
      INFO(line << ", moments " << int(moments));
      States states, moved;
      run(line + " dtype=bf16", job, states);
      check_same(states.last, alone.last);
      play_job(line + " dtype=bf16", job, [&](Player& player) {
        middles.give(player.strategy().state());
        player.strategy().state_restored();
        moved.stopped.take(player.strategy().state());
        train(player, job, kStop, kSteps);
        moved.last.take(player.strategy().state());
      });
      if (!last) stopped = moved.stopped.tensors(), last = moved.last.tensors();
      check_same(moved.stopped, *stopped);
      check_same(moved.last, *last);
    }
  }
}

TEST_CASE("only blocks of large parameters are in 8 bits") {
  const Job job = toy_job(MomentsDtype::kInt8, "blocks=L24 tie=none hidden=12 vocabulary=101");
  States states;
  run("strategy=zero1 data=2", job, states);
  const Tensors tensors = states.last.tensors();
  CHECK(tensors.at("embedding.weight exp_avg").scalar_type() == at::kByte);
  CHECK(tensors.at("embedding.weight exp_avg").sizes() == at::IntArrayRef({101, 12}));
  CHECK(tensors.at("embedding.weight exp_avg_absmax").sizes() == at::IntArrayRef({5}));
  CHECK(tensors.at("head.bias exp_avg_sq").scalar_type() == at::kByte);  // 101 elements
  CHECK(tensors.contains("head.bias exp_avg_sq_absmax"));
  int64_t small = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!name.ends_with(" exp_avg") || tensor.numel() >= 100) continue;
    ++small;
    CHECK(tensor.scalar_type() == at::kFloat);
    CHECK(!tensors.contains(name + "_absmax"));
  }
  CHECK(small > 0);
}

TEST_CASE("embeddings and heads keep fp32 moments under every layout, and who is told to") {
  Job job = toy_job(MomentsDtype::kInt8, "blocks=L24.L30 tie=first hidden=12 vocabulary=101");
  job.model.model = with_groups(
      job.model.model, {{.name = "table", .matches = named("embedding"), .fp32_state = true}});
  check_layouts(job, {kLayouts[1], kLayouts[3], kLayouts[4], kLayouts[6], kLayouts[10],
                      kLayouts[11], kLayouts[13]});
  States toy;
  run("strategy=ddp pipeline=2", job, toy);
  CHECK(toy.last.tensors().at("embedding.weight exp_avg").scalar_type() == at::kFloat);
  for (const std::string family : {"gpt2", "llama"}) {
    for (const std::string line :
         {"strategy=single", "strategy=zero3 data=2", "strategy=fsdp pipeline=2",
          "strategy=zero1 data=2 offload=optimizer offload_step=host", "strategy=ddp tensor=2",
          "strategy=zero1 pipeline=2 data=2 offload=optimizer offload_step=device"}) {
      INFO(family << ", " << line);
      const bool cut = line.find("tensor") != std::string::npos;  // the cut may be inside blocks
      Job of_family = tensor_job(cut ? 512 : 32, family);
      of_family.adamw.min_8bit_size = cut ? 1000 : 100;
      States states;
      run(line, of_family, states);
      int64_t in_8_bits = 0;
      for (const auto& [name, tensor] : states.last.tensors()) {
        if (!name.ends_with(" exp_avg_sq")) continue;
        const bool layer = name.starts_with("h.") || name.starts_with("layers.");
        const bool coded = layer && tensor.numel() >= of_family.adamw.min_8bit_size;
        CHECK((tensor.scalar_type() == at::kByte) == coded);
        CHECK(states.last.tensors().contains(name + "_absmax") == coded);
        in_8_bits += coded ? 1 : 0;
      }
      CHECK(in_8_bits >= 4);
    }
  }
}

TEST_CASE("8-bit moments are refused where no parameter is large enough") {
  Job job = toy_job(MomentsDtype::kInt8, "blocks=L6 tie=none");
  job.adamw.min_8bit_size = 4096;
  for (const std::string line : {"strategy=zero3 data=2", "strategy=ddp pipeline=2"}) {
    INFO(line);
    CHECK(error_of([&] { play_job(line, job, [](Player&) {}); }) ==
          "moments in 8 bits: no trained parameter has them: each has fewer than 4096 elements "
          "(min_8bit_size), or is an embedding or a head; use moments in bf16 or fp32");
  }
}

TEST_CASE("a tensor axis keeps blocks whole, or is refused") {
  const std::string two = "strategy=zero1 data=2 tensor=2";
  CHECK_THAT(error_of([&] { play_job(two, tensor_job(40), [](Player&) {}); }),
             test::contains("moments in 8 bits: the tensor axis cuts "));
  CHECK_THAT(error_of([&] { play_job(two, tensor_job(40), [](Player&) {}); }),
             test::contains("inside blocks of 256 elements; use fewer tensor ranks, or moments in "
                            "bf16 or fp32"));
  const Job job = tensor_job(512);
  States cut, alone;
  run(two, job, cut);
  CHECK(cut.stopped.problem() == "");
  // Its checkpoint is complete: another layout and the same one resume from it with equal bits.
  for (const std::string& line : {two, std::string("strategy=zero3 data=2")}) {
    INFO(line);
    WholeState restored, last;
    play_job(line, job, [&](Player& player) {
      cut.stopped.give(player.strategy().state());
      player.strategy().state_restored();
      restored.take(player.strategy().state());
      train(player, job, kStop, kSteps);
      last.take(player.strategy().state());
    });
    check_same(restored, cut.stopped);
    if (line == two) check_same(last, cut.last);
  }
}

TEST_CASE("checkpoints of 8-bit moments go on in any layout, in fp32 and in bf16") {
  const std::string model = "blocks=L24.Q3.L30.T tie=first hidden=12 vocabulary=101";
  const Job job = toy_job(MomentsDtype::kInt8, model);
  const TempDir folder;
  States alone;
  run("strategy=single", job, alone);
  play_job("strategy=fsdp data=4", job, [&](Player& player) {
    CheckpointWriter writer(player.world(), folder.path("run"));
    train(player, job, 0, kStop);
    writer.save(kStop, player.strategy().state(), "{}");
    writer.wait();
  });
  const std::string path = folder.path("run") + "/checkpoint-1";
  const auto load = [&](const std::string& line, const Job& into, WholeState& loaded, int end) {
    play_job(line, into, [&](Player& player) {
      const Checkpoint checkpoint = open_checkpoint(player.world(), path);
      load_checkpoint(player.world(), checkpoint, player.strategy().state());
      player.strategy().state_restored();
      train(player, into, kStop, end);
      loaded.take(player.strategy().state());
    });
  };
  for (const std::string& line : {kLayouts[3], kLayouts[7], kLayouts[11]}) {
    INFO(line);
    WholeState last;
    load(line, job, last, kSteps);
    check_same(last, alone.last);
  }
  // fp32 takes the codes' values. The map has 1 but not -1, only -0.993.
  Job wide = job;
  wide.adamw.moments = MomentsDtype::kFloat32;
  WholeState in_fp32;
  load("strategy=zero1 data=2", wide, in_fp32, kStop);
  const Tensors codes = alone.stopped.tensors(), values = in_fp32.tensors();
  for (const std::string name : {"embedding.weight exp_avg", "embedding.weight exp_avg_sq"}) {
    INFO(name);
    const at::Tensor most = codes.at(name + "_absmax"), all = values.at(name).flatten();
    CHECK(values.at(name).scalar_type() == at::kFloat);
    for (int64_t block = 0; block < most.numel(); ++block) {
      const at::Tensor of_block = all.slice(0, block * 256, (block + 1) * 256);
      const float largest = most[block].item<float>();
      if (of_block.max().item<float>() == largest) continue;
      CHECK(of_block.min().item<float>() == Approx(-0.9929688F * largest));
    }
    CHECK(values.at(name).ne(0).equal(codes.at(name).ne(0)));
  }
  const TempDir other;
  play_job("strategy=zero1 data=2", wide, [&](Player& player) {
    const Checkpoint checkpoint = open_checkpoint(player.world(), path);
    load_checkpoint(player.world(), checkpoint, player.strategy().state());
    player.strategy().state_restored();
    CheckpointWriter writer(player.world(), other.path("run"));
    writer.save(kStop, player.strategy().state(), "{}");
    writer.wait();
  });
  WholeState again;
  play_job("strategy=zero3 data=4", job, [&](Player& player) {
    const Checkpoint checkpoint =
        open_checkpoint(player.world(), other.path("run") + "/checkpoint-1");
    load_checkpoint(player.world(), checkpoint, player.strategy().state());
    player.strategy().state_restored();
    again.take(player.strategy().state());
  });
  // Converted back: equal codes where the largest values are positive.
  for (const auto& [name, tensor] : again.tensors()) {
    INFO(name);
    const at::Tensor& expected = codes.at(name);
    if (name.ends_with(" exp_avg")) continue;
    if (name.ends_with(" exp_avg_absmax")) {
      CHECK(at::allclose(tensor, expected, 0.0071, 0));
    } else {
      CHECK_NOTHROW(test::require_bit_equal(tensor, expected, name));
    }
  }
}
