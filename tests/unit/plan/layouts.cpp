// SPDX-License-Identifier: MIT
#include "tests/unit/plan/layouts.h"

#include <ATen/ATen.h>

#include "lib/checkpoint/shard_writer.h"
#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/model/lora.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/muon.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/sized.h"
#include "tests/unit/plan/pile.h"

namespace tessera::testing {
namespace {

constexpr int64_t kHidden = 128, kRows = 2, kSequence = 8;

MicroBatch batch() {
  const at::Tensor ids = at::arange(kRows * kSequence).view({kRows, kSequence});
  return make_micro_batch(ids, ids + 1);
}

}  // namespace

ModelSpec small_bloom() {
  return causal(sized("bloom", {.vocabulary = 512, .hidden = kHidden, .heads = 4, .layers = 5}));
}

ModelSpec small_experts() {
  DecoderConfig config = sized("qwen3_moe", {.vocabulary = 512,
                                             .hidden = kHidden,
                                             .heads = 4,
                                             .layers = 3,
                                             .inner = 64,
                                             .key_heads = 2,
                                             .head_dim = 32});
  config.experts = 4;
  config.experts_per_token = 2;
  config.expert_inner = 64;
  return causal(config);
}

int Layout::ranks() const { return rank_count(mesh); }

std::string Layout::name() const {
  const char* offload[] = {"", " optimizer offloaded", " parameters offloaded"};
  return concat(
      parallel.strategy, " ", mesh.pipeline, "x", mesh.data, "x", mesh.tensor, " ",
      mesh.context > 1 ? concat("context ", mesh.context, " ") : "",
      mesh.expert > 1 ? concat("expert ", mesh.expert, " ") : "", parallel.precision.parameter,
      " accumulation ", accumulation, mesh.pipeline > 1 ? " " + parallel.pipeline.schedule : "",
      parallel.pipeline.shared_vocabulary ? " shared vocabulary" : "",
      parallel.sequence_parallel ? " sequence parallel" : "",
      parallel.gradient_checkpointing ? " checkpointing" : "",
      parallel.reshard_after_forward ? "" : " no reshard",
      parallel.unit_numel > 0 ? " larger units" : "",
      parallel.coalesce_bytes > 0 ? concat(" messages of ", parallel.coalesce_bytes) : "",
      parallel.shard_ranks > 0 ? concat(" shard ranks ", parallel.shard_ranks) : "",
      parallel.reduce_at_boundary ? " at the boundary" : "", parallel.overlap ? "" : " no overlap",
      offload[static_cast<int>(parallel.offload.what)],
      parallel.precision.gradient ? concat(" gradients ", *parallel.precision.gradient) : "",
      parallel.precision.reduce ? concat(" reduced in ", *parallel.precision.reduce) : "",
      parallel.precision.fp8 == Fp8::kTensorwise ? " fp8 tensorwise"
      : parallel.precision.fp8 == Fp8::kRowwise  ? " fp8 rowwise"
                                                 : "",
      parallel.precision.fp8_layers == "all" ? "" : " of " + parallel.precision.fp8_layers,
      parallel.fp8_all_gather ? "" : " gathered as values", remark.empty() ? "" : " ", remark);
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  auto add = [&](ParallelConfig config, MeshExtents mesh, int accumulation = 1) {
    config.persistence_threshold = 1000;
    all.push_back({config, mesh, accumulation, small_bloom()});
  };
  const std::vector<std::string> names{"ddp", "zero1", "zero2", "zero3", "fsdp"};
  for (const std::string& name : names) {
    for (int ranks : {1, 2, 4}) {
      ParallelConfig config{.strategy = name};
      add(config, {.data = ranks}, ranks == 2 ? 3 : 1);
      config.precision.parameter = at::kBFloat16;
      add(config, {.data = ranks});
    }
    add({.strategy = name, .overlap = false, .gradient_checkpointing = true}, {.data = 2});
  }
  add({.strategy = "zero2", .reduce_at_boundary = true}, {.data = 2}, 3);
  add({.strategy = "zero3", .prefetch_blocks = 2}, {.data = 2}, 2);
  add({.strategy = "fsdp", .reduce_at_boundary = true}, {.data = 2}, 3);
  add({.strategy = "fsdp", .reshard_after_forward = false}, {.data = 2}, 2);
  add({.strategy = "fsdp", .unit_numel = 300'000}, {.data = 2});
  add({.strategy = "fsdp", .shard_ranks = 1}, {.data = 2});
  for (const std::string& name : names) {
    add({.strategy = name, .coalesce_bytes = 2'000'000}, {.data = 2}, 2);
    ParallelConfig config{.strategy = name, .coalesce_bytes = 2'000'000};
    config.pipeline = {.schedule = "interleaved", .chunks = 2};
    add(config, {.pipeline = 2, .data = 2}, 4);
    config.pipeline = {};
    config.precision = {.parameter = at::kBFloat16, .reduce = at::kFloat};
    add(config, {.data = 2}, 2);
  }
  add({.strategy = "fsdp", .coalesce_bytes = 2'000'000, .reshard_after_forward = false},
      {.data = 2}, 2);
  add({.strategy = "fsdp", .shard_ranks = 2}, {.data = 4}, 2);
  for (const std::string& name : names) {
    for (const char* schedule : {"1f1b", "gpipe", "interleaved"}) {
      ParallelConfig config{.strategy = name};
      config.pipeline = {.schedule = schedule, .chunks = *schedule == 'i' ? 2 : 1};
      add(config, {.pipeline = 2, .data = name == "ddp" ? 1 : 2}, 4);
    }
  }
  add({.strategy = "ddp"}, {.pipeline = 3}, 2);
  for (const std::string& name : names) {
    ParallelConfig config{.strategy = name};
    config.pipeline = {.schedule = name == "zero2" ? "gpipe" : "1f1b", .shared_vocabulary = true};
    add(config, {.pipeline = 2, .data = name == "ddp" ? 1 : 2}, 4);
    config.precision.parameter = at::kBFloat16;
    config.gradient_checkpointing = true;
    config.unit_numel = name == "fsdp" ? 300'000 : 0;
    add(config, {.pipeline = 4, .data = name == "ddp" ? 2 : 1}, 3);
  }
  for (const std::string& name : names) {
    add({.strategy = name}, {.data = 2, .tensor = 2}, 2);
    add({.strategy = name, .sequence_parallel = true}, {.data = 1, .tensor = 2});
    add({.strategy = name, .gradient_checkpointing = true}, {.pipeline = 2, .data = 2, .tensor = 2},
        2);
  }
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::string& name : names) {
      ParallelConfig config{.strategy = name == "ddp" ? "single" : name,
                            .offload = {.what = Offload::kOptimizer}};
      config.precision.parameter = dtype;
      add(config, {.data = 1});
      if (name == "ddp") continue;
      add(config, {.data = 2});
      config.offload.what = Offload::kOptimizerAndParameters;
      if (name == "zero3" || name == "fsdp") add(config, {.data = dtype == at::kFloat ? 1 : 2});
    }
  }
  ParallelConfig streamed{.strategy = "zero3",
                          .offload = {.what = Offload::kOptimizer, .step = OffloadStep::kDevice}};
  add(streamed, {.data = 2});
  streamed.precision.parameter = at::kBFloat16;
  streamed.offload.what = Offload::kOptimizerAndParameters;
  add(streamed, {.data = 2});
  add({.strategy = "zero2", .offload = {.what = Offload::kOptimizer}}, {.pipeline = 2, .data = 2},
      2);
  for (const OffloadStep step : {OffloadStep::kHost, OffloadStep::kDevice, OffloadStep::kBoth}) {
    ParallelConfig shared{
        .strategy = "zero1",
        .offload = {.what = Offload::kOptimizer, .step = step, .device_bytes = int64_t{1} << 20}};
    add(shared, {.data = 2});
    shared.precision.parameter = at::kBFloat16;
    add(shared, {.pipeline = 2}, 2);
  }
  add({.strategy = "zero1", .gradient_checkpointing = true, .sequence_parallel = true},
      {.data = 1, .tensor = 4}, 2);
  for (const std::string& name : names) {
    add({.strategy = name, .context_attention = ContextAttention::kHeads},
        {.data = 2, .context = 2}, 2);
    add({.strategy = name,
         .gradient_checkpointing = true,
         .context_attention = ContextAttention::kKeys},
        {.context = 2});
  }
  add({.strategy = "zero1", .sequence_parallel = true}, {.tensor = 2, .context = 2}, 2);
  add({.strategy = "zero2"}, {.pipeline = 2, .context = 2}, 2);
  for (const std::string& name : names) {
    ParallelConfig config{.strategy = name, .precision = {.fp8 = Fp8::kTensorwise}};
    config.gradient_checkpointing = name == "zero2";
    config.reshard_after_forward = name != "fsdp";
    add(config, {.data = 2}, 2);
    config.precision.fp8_layers = "qkv,down";
    add(config, {.data = 2}, 2);
    config.precision = {.parameter = at::kBFloat16, .fp8 = Fp8::kRowwise};
    config.sequence_parallel = name != "zero1";
    add(config, {.data = 1, .tensor = 2}, 3);
    if (name == "ddp") add(config, {.pipeline = 2, .data = 1, .tensor = 2}, 4);
  }
  for (const std::string name : {"zero3", "fsdp"}) {
    ParallelConfig config{.strategy = name};
    config.precision = {.parameter = at::kBFloat16, .fp8 = Fp8::kTensorwise};
    add(config, {.data = 2, .tensor = 2}, 2);
    add(config, {.pipeline = 2, .data = 2}, 2);
    config.gradient_checkpointing = true;
    config.coalesce_bytes = 2'000'000;
    add(config, {.data = 3}, 2);
    config.fp8_all_gather = false;
    add(config, {.data = 2}, 2);
  }
  for (const std::string& name : names) {
    for (const MeshExtents mesh :
         {MeshExtents{.data = 2, .expert = 2}, MeshExtents{.data = 4, .expert = 2},
          MeshExtents{.pipeline = 2, .data = 2, .expert = 2}}) {
      ParallelConfig config{.strategy = name, .persistence_threshold = 1000};
      config.gradient_checkpointing = mesh.data == 4;
      all.push_back({config, mesh, 2, small_experts(), "experts"});
    }
    const ModelSpec adapted = add_lora(small_bloom(), {.r = 4, .target_modules = {"all-linear"}});
    for (const Fp8 fp8 : {Fp8::kOff, Fp8::kTensorwise}) {
      ParallelConfig config{.strategy = name, .persistence_threshold = 1000};
      config.precision = {.parameter = at::kBFloat16, .frozen = FrozenDtype::kFp8, .fp8 = fp8};
      all.push_back({config, {.data = 2}, 2, adapted, "adapters beside codes"});
      all.push_back({config, {.data = 1, .tensor = 2}, 1, adapted, "adapters beside codes"});
    }
  }
  return all;
}

std::vector<Layout> matrix_layouts() {
  std::vector<Layout> all;
  const auto add = [&](ParallelConfig config, MeshExtents mesh) {
    config.persistence_threshold = 1000;
    config.bucket_bytes = 100'000;
    all.push_back({config, mesh, /*accumulation=*/2, small_bloom(), "Muon",
                   make_muon({.ns_steps = 0}, make_adamw({}))});
  };
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    add({.strategy = name}, {.data = 1});
    add({.strategy = name}, {.data = 3});
    add({.strategy = name}, {.pipeline = 2, .data = 2});
    add({.strategy = name}, {.data = 2, .tensor = 2});
  }
  add({.strategy = "fsdp", .shard_ranks = 2}, {.data = 4});
  for (const OffloadStep step : {OffloadStep::kHost, OffloadStep::kDevice, OffloadStep::kBoth}) {
    ParallelConfig config{.strategy = "zero3",
                          .offload = {.what = Offload::kOptimizerAndParameters, .step = step}};
    config.precision.parameter = at::kBFloat16;
    add(config, {.data = 2});
    config.strategy = "zero1";
    config.offload.what = Offload::kOptimizer;
    config.precision = {};
    add(config, {.data = 2});
    config.offload.device_bytes = int64_t{1} << 19;
    add(config, {.data = 2});
  }
  return all;
}

std::vector<Layout> memory_layouts() {
  std::vector<Layout> all = layouts();
  // The pile's blocks take no cut rows, and have neither products in 8 bits nor experts.
  std::erase_if(all, [](const Layout& layout) {
    return layout.mesh.context > 1 || layout.mesh.expert > 1 ||
           layout.parallel.precision.fp8 != Fp8::kOff ||
           layout.parallel.precision.frozen != FrozenDtype::kSame;
  });
  for (Layout& layout : all) {
    layout.model = make_pile();
  }
  auto add = [&](ParallelConfig config, MeshExtents mesh, int accumulation,
                 const PileConfig& pile = {}, const std::string& remark = "") {
    config.persistence_threshold = 1000;
    all.push_back({config, mesh, accumulation, make_pile(pile), remark});
  };
  auto add_frozen = [&](const ParallelConfig& config, MeshExtents mesh, int accumulation,
                        const PileConfig& pile = {}) {
    // The last: blocks without backward share messages with one that has it.
    for (const std::string part : {"large", "layer.0", "first", "first layer.0"}) {
      add(config, mesh, accumulation, pile, "frozen: " + part);
      all.back().model =
          freeze(make_pile(pile), [part](const std::string& block, const std::string& p) {
            return p == part || concat(" ", part, " ").find(" " + block + " ") != std::string::npos;
          });
    }
  };
  const PileConfig uneven{.layers = {4096, 90'112, 0, 1024, 49'152, 0, 20'480}};
  for (const std::string name : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    for (const int64_t bucket : {int64_t{64} << 10, int64_t{25} << 20}) {
      ParallelConfig config{.strategy = name, .bucket_bytes = bucket};
      config.precision.reduce = at::kBFloat16;
      add(config, {.data = 2}, 2);
      config.precision = {.parameter = at::kBFloat16, .reduce = at::kFloat};
      add(config, {.data = 2}, 2, uneven, "uneven");
      config.overlap = false;
      add(config, {.data = 2}, 2);
      config.overlap = true;
      config.precision = {.parameter = at::kBFloat16, .gradient = at::kFloat, .reduce = at::kHalf};
      add(config, {.pipeline = 2, .data = 2}, 2);
      config.reduce_at_boundary = name == "zero2" || name == "fsdp";
      if (config.reduce_at_boundary) add(config, {.data = 2}, 2);
    }
    for (int ahead : {0, 1, 2}) {
      add({.strategy = name, .prefetch_blocks = ahead}, {.data = 2}, 1, uneven, "uneven");
      const ParallelConfig joined{
          .strategy = name, .coalesce_bytes = 400'000, .prefetch_blocks = ahead};
      add(joined, {.data = 2}, 2, uneven, "uneven");
    }
    add_frozen({.strategy = name, .coalesce_bytes = 400'000}, {.data = 2}, 2);
    add_frozen({.strategy = name, .coalesce_bytes = 400'000}, {.data = 2}, 2,
               {.layers = std::vector<int64_t>(12, 49'152)});
    add_frozen({.strategy = name}, {.data = 2}, 2);
    add_frozen({.strategy = name, .gradient_checkpointing = true}, {.pipeline = 2, .data = 2}, 2);
    add({.strategy = name, .sequence_parallel = true}, {.data = 2, .tensor = 2}, 1, uneven,
        "uneven");
    ParallelConfig config{.strategy = name};
    config.pipeline = {.schedule = "interleaved", .chunks = 2};
    add(config, {.pipeline = 2, .data = 2}, 4, uneven, "uneven");
  }
  ParallelConfig hybrid{.strategy = "fsdp", .unit_numel = 60'000, .shard_ranks = 2};
  add(hybrid, {.data = 4}, 2, uneven, "uneven");
  hybrid.precision = {.parameter = at::kBFloat16, .reduce = at::kFloat};
  add(hybrid, {.data = 4}, 2, uneven, "uneven");
  hybrid.pipeline = {.schedule = "interleaved", .chunks = 2};
  hybrid.shard_ranks = 0;
  add(hybrid, {.pipeline = 2, .data = 2}, 4, uneven, "uneven");
  for (const std::string name : {"zero1", "zero2", "zero3", "fsdp"}) {
    ParallelConfig offloaded{.strategy = name, .offload = {.what = Offload::kOptimizer}};
    offloaded.precision = {.parameter = at::kBFloat16, .gradient = at::kFloat};
    add(offloaded, {.data = 2}, 2, uneven, "uneven");
    offloaded.offload.step = OffloadStep::kDevice;
    offloaded.offload.chunk_numel = 10'000;
    add(offloaded, {.data = 2}, 2, uneven, "uneven");
    if (name == "zero1" || name == "zero2") continue;
    offloaded.offload.what = Offload::kOptimizerAndParameters;
    add(offloaded, {.data = 2}, 2, uneven, "uneven");
    add_frozen(offloaded, {.data = 2}, 2);
    offloaded.offload.step = OffloadStep::kHost;
    add_frozen(offloaded, {.data = 2}, 2);
  }
  return all;
}

std::vector<MicroBatch> batches_of(const Layout& layout) {
  return {static_cast<size_t>(layout.accumulation), batch()};
}

Measured measure(Communicator& ranks, const Layout& layout) {
  const auto ledger = std::make_shared<CommunicationLedger>();
  const auto recorded = record_operations(ranks.split(0, ranks.rank()), ledger);
  Communicator& world = *recorded;
  const int64_t begin = CountingAllocator::live_bytes();
  CountingAllocator::reset_peak();
  const Player player(world, {.model = layout.model,
                              .mesh = layout.mesh,
                              .parallel = layout.parallel,
                              .optimizer = layout.optimizer});
  Strategy& strategy = player.strategy();
  Measured measured;
  measured.live_after_attach = CountingAllocator::live_bytes() - begin;
  measured.peak_of_attach = CountingAllocator::peak_bytes() - begin;
  CountingAllocator::reset_peak();
  {
    const std::vector<MicroBatch> batches = batches_of(layout);
    for (int step = 0; step < 2; ++step) {
      ledger->clear();
      measured.sent_in_a_step = -player.bytes_sent();
      strategy.forward_backward(batches);
      strategy.grad_norm_squared();
      strategy.optimizer_step(1e-3);
      measured.sent_in_a_step += player.bytes_sent();
    }
  }
  measured.communication = *ledger;
  measured.peak_of_steps = CountingAllocator::peak_bytes() - begin;
  measured.live_after_step = CountingAllocator::live_bytes() - begin;
  measured.reported = strategy.memory();
  int64_t saved = 0;
  for (const ShardPiece& piece : pieces_to_write(strategy.state())) {
    saved += piece.nbytes();
  }
  const at::Tensor sum = at::tensor({saved}, at::kLong);
  world.all_reduce(sum).wait();
  measured.saved_by_all = sum.item<int64_t>();
  return measured;
}

}  // namespace tessera::testing
