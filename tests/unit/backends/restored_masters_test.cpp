// SPDX-License-Identifier: MIT
// Changes made by a restore: masters are rounded to the split format, and first moments without
// second ones are reset. Everything else keeps its bits.
#include <ATen/ATen.h>

#include "lib/testing/fuzz_case.h"
#include "lib/testing/player.h"
#include "lib/testing/whole_state.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/core/split_master.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/muon.h"
#include "tessera/train/weight_average.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

const std::vector<std::string> kMasterLayouts = {
    "strategy=single dtype=bf16",
    "strategy=zero3 data=2 dtype=bf16",
    "strategy=ddp pipeline=2 dtype=bf16",
    "strategy=zero1 data=2 offload=optimizer offload_step=host dtype=bf16",
    "strategy=zero1 data=2 offload=optimizer offload_step=both dtype=bf16",
    "strategy=zero2 data=2 offload=optimizer offload_step=device dtype=bf16"};

void with_muon(const std::string& line, const std::function<void(Player&)>& script) {
  const FuzzCase layout = parse_case(line);
  play({.model = toy_language_model({}),
        .mesh = layout.mesh,
        .parallel = layout.parallel,
        .optimizer = make_muon({}, make_adamw({.weight_decay = 0.1}))},
       script);
}

void train(Player& player) {
  player.train({toy_micro_batch({}, 2, 6, static_cast<uint64_t>(player.data_rank()))});
}

// Makes every value unrepresentable as a split master.
void make_middles(const at::Tensor& values) {
  values.view(at::kInt).bitwise_and_(0x7FFE0000).bitwise_or_(0x8000);
}

std::vector<StateTensor> of_kind(std::vector<StateTensor> state, const std::string& kind) {
  std::erase_if(state, [&](const StateTensor& piece) { return piece.kind != kind; });
  return state;
}

std::vector<at::Tensor> values_of(const std::vector<StateTensor>& pieces) {
  std::vector<at::Tensor> values;
  for (const StateTensor& piece : pieces) values.push_back(piece.get().clone());
  return values;
}

void require_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  test::require(a.size() == b.size(), "as many pieces");
  for (size_t i = 0; i < a.size(); ++i) test::require_bit_equal(a[i], b[i], "piece");
}

}  // namespace

TEST_CASE("a restore settles the masters that steps settle, and no matrices that Muon updates") {
  for (const std::string& line : kMasterLayouts) {
    INFO(line);
    with_muon(line, [](Player& player) {
      Strategy& strategy = player.strategy();
      train(player);
      const std::vector<StateTensor> masters = of_kind(strategy.state(), "parameter");
      int64_t matrices = 0, others = 0;
      for (const StateTensor& piece : masters) {
        const at::Tensor values = piece.get().clone();
        make_middles(values);
        piece.set(values);
      }
      strategy.state_restored();
      for (const StateTensor& piece : masters) {
        const bool muon = piece.name.ends_with("up.weight") || piece.name.ends_with("down.weight");
        (muon ? matrices : others) += piece.slice.numel();
        test::require(settle_moves(piece.get()).all().item<bool>() == muon, piece.name);
      }
      test::require(others > 0, "there are others");
      if (player.mesh().world().size() == 1) test::require(matrices > 0, "there are matrices");
    });
  }
}

TEST_CASE("what an average stands in for has its bits again, and so has the average") {
  for (const std::string& line : kMasterLayouts) {
    INFO(line);
    with_muon(line, [](Player& player) {
      Strategy& strategy = player.strategy();
      train(player);
      for (const StateTensor& piece : of_kind(strategy.state(), "parameter")) {
        const at::Tensor values = piece.get().clone();
        make_middles(values);
        piece.set(values);
      }
      strategy.state_restored();
      WeightAverage average(strategy, 0.5);
      for (const StateTensor& piece : average.state()) make_middles(piece.value);
      const auto masters = [&] { return values_of(of_kind(strategy.state(), "parameter")); };
      const std::vector<at::Tensor> before = masters(), averages = values_of(average.state());
      const std::vector<MicroBatch> rows{toy_micro_batch({}, 2, 6, 1)};
      for (int i = 0; i < 2; ++i) {
        const WeightAverage::Swapped swapped(average);
        strategy.evaluate(rows);
      }
      require_same(masters(), before);
      require_same(values_of(average.state()), averages);
    });
  }
}

// Earlier versions stored second moments that were small in their block as zeros.
TEST_CASE("first moments whose second ones were lost in a checkpoint are forgotten") {
  const std::string name = "layer.1.up.weight";
  const TempDir folder;
  const auto with_moments = [&](const std::string& line, MomentsDtype moments,
                                const std::function<void(Player&)>& script) {
    const FuzzCase layout = parse_case(line);
    play({.model = toy_language_model({}),
          .mesh = layout.mesh,
          .parallel = layout.parallel,
          .optimizer = make_adamw({.moments = moments, .min_8bit_size = 100})},
         script);
  };
  with_moments("strategy=single", MomentsDtype::kInt8, [&](Player& player) {
    train(player);
    for (const StateTensor& piece : of_kind(player.strategy().state(), "exp_avg_sq")) {
      if (piece.name == name) at::Tensor(piece.value).slice(0, 0, std::nullopt, 2).zero_();
    }
    CheckpointWriter writer(player.world(), folder.path("run"));
    writer.save(1, player.strategy().state(), "{}");
    writer.wait();
  });
  for (const auto moments :
       {MomentsDtype::kInt8, MomentsDtype::kBFloat16, MomentsDtype::kFloat32}) {
    WholeState loaded;
    with_moments("strategy=zero1 data=2", moments, [&](Player& player) {
      const Checkpoint checkpoint =
          open_checkpoint(player.world(), folder.path("run") + "/checkpoint-1");
      load_checkpoint(player.world(), checkpoint, player.strategy().state());
      player.strategy().state_restored();
      loaded.take(player.strategy().state());
    });
    const at::Tensor average = loaded.tensors().at(name + " exp_avg").flatten();
    CHECK(average.slice(0, 0, std::nullopt, 2).ne(0).sum().item<int64_t>() == 0);
    CHECK(average.slice(0, 1, std::nullopt, 2).ne(0).any().item<bool>());
  }
}
