// SPDX-License-Identifier: MIT
// Decoding by captured graphs on the GPU, compared with decoding kernel by kernel:
//   decoding_check [PART OF A CASE'S NAME]
// Scores and tokens must be equal bit for bit, in every batch and after weights have changed.
#include <ATen/ATen.h>
#include <ATen/TensorIndexing.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backends/common/device_graph_runner.h"
#include "lib/testing/player.h"
#include "tessera/comm/launch.h"
#include "tessera/core/error.h"
#include "tessera/core/key_value_cache.h"
#include "tessera/generation/generate.h"
#include "tests/gpu/allocator.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/toy_models.h"

namespace tessera::testing {
namespace {

using test::require;

constexpr int64_t kVocabulary = 1000, kPositions = 160;
using Prompts = std::vector<std::vector<int64_t>>;

struct Case {
  std::string name;
  ModelSpec model;
  at::ScalarType dtype = at::kBFloat16;
  GenerationOptions options = {};
  bool recorded = true;
};

Prompts prompts_of_many_lengths() {
  Prompts prompts;
  for (int64_t i = 0; i < 11; ++i) {
    prompts.emplace_back();
    for (int64_t token = 0; token < 1 + (i * 37) % 90; ++token) {
      prompts.back().push_back((i * 131 + token * 17) % kVocabulary);
    }
  }
  return prompts;
}

int64_t requests() {
  return test::gpu_memory()
      .allocation[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
      .allocated;
}

struct GeneratedText {
  std::vector<GeneratedRow> rows;
  int64_t requests = 0;  // allocator requests of the last call
};

// Before and after a step.
GeneratedText generate_all(Communicator& world, const Case& c, bool records) {
  ::setenv("TESSERA_CUDA_GRAPH", records ? "1" : "0", /*replace=*/1);
  ParallelConfig config;
  config.precision.parameter = c.dtype;
  const Player player(world, {.model = c.model, .parallel = config});
  Strategy& strategy = player.strategy();
  const Prompts prompts = prompts_of_many_lengths();
  GeneratedText result;
  const auto write = [&] {
    const int64_t before = requests();
    const auto rows = generate(strategy, player.mesh(), prompts, c.options);
    result.requests = requests() - before;
    result.rows.insert(result.rows.end(), rows.begin(), rows.end());
  };
  write();
  const MicroBatch batch =
      toy_micro_batch({.vocabulary = kVocabulary}, 4, 32, /*number=*/1).to(world.device());
  strategy.forward_backward(std::vector<MicroBatch>{batch});
  strategy.optimizer_step(1e-2);
  write();
  return result;
}

void compare_case(Communicator& world, const Case& c) {
  const GeneratedText expected = generate_all(world, c, /*records=*/false);
  const GeneratedText actual = generate_all(world, c, /*records=*/true);
  std::printf("%s: %lld and %lld requests to the allocator\n", c.name.c_str(),
              static_cast<long long>(expected.requests), static_cast<long long>(actual.requests));
  std::fflush(stdout);
  for (size_t i = 0; i < expected.rows.size(); ++i) {
    require(actual.rows[i].ids == expected.rows[i].ids &&
                actual.rows[i].finish == expected.rows[i].finish,
            c.name, ": row ", i, " is ", at::IntArrayRef(actual.rows[i].ids), ", kernel by kernel ",
            at::IntArrayRef(expected.rows[i].ids));
  }
  require((4 * actual.requests < 3 * expected.requests) == c.recorded, c.name,
          c.recorded ? ": nothing was recorded" : ": it was recorded");
}

// Scores of every token, for rows decoded in the same memory.
at::Tensor all_scores(Communicator& world, const ModelSpec& model, bool records) {
  ::setenv("TESSERA_CUDA_GRAPH", records ? "1" : "0", /*replace=*/1);
  constexpr int64_t kRows = 3, kBegun = 20, kTokens = 24;
  ParallelConfig config;
  config.precision.parameter = at::kHalf;
  const Player player(world, {.model = model, .parallel = config});
  const at::NoGradGuard no_grad;
  const auto whole = at::TensorOptions(at::kLong).device(world.device());
  MicroBatch batch;
  batch.decode_state.cache = std::make_shared<KeyValueCache>(kRows, kBegun + kTokens);
  const auto work = std::make_shared<DeviceGraphRunner>(world.device(), kTokens);
  batch.decode_state.cache->set_repeated(work);
  batch.input_ids = at::arange(kRows * kBegun, whole).mul(7).view({kRows, kBegun});
  player.strategy().predict(std::vector{batch});
  const at::Tensor token = at::zeros({kRows, 1}, whole);
  const at::Tensor length = at::full({kRows}, kBegun, whole);
  std::vector<at::Tensor> scores;
  for (int64_t i = 0; i < kTokens; ++i) {
    token.fill_(13 * i + 5);
    // A call with other memory in between is not captured.
    batch.input_ids = i == kTokens / 2 ? token.clone() : token;
    batch.decode_state.lengths = length;
    scores.push_back(player.strategy().predict(std::vector{batch}).front().clone());
    length.add_(1);
  }
  require(work->is_recorded() == records, "scores: ", records ? "not " : "", "recorded");
  return at::stack(scores);
}

// Packed prompts, more than the cache has rows, and two more tokens, compared with whole rows.
void check_packed(Communicator& world, const std::string& name, const ModelSpec& model,
                  at::ScalarType type) {
  ParallelConfig config;
  config.precision.parameter = type;
  const Player player(world, {.model = model, .parallel = config});
  const at::NoGradGuard no_grad;
  const auto predict = [&](const MicroBatch& batch) {
    return player.strategy().predict(std::vector{batch}).front().to(at::kFloat).cpu();
  };
  const auto near = [&](const at::Tensor& actual, const at::Tensor& expected) {
    const double error = (actual - expected).norm().item<double>();
    const double bound = (type == at::kFloat ? 1e-4 : 2e-2) * expected.norm().item<double>();
    require(error <= bound, name, ": packed rows are ", error, " off, more than ", bound);
  };
  const std::vector<int64_t> lengths{70, 1, 33, 64};
  const int64_t all = lengths[0] + 2, rows = 4, behind = 24;
  const at::Tensor ids = at::arange(rows * all).mul(7).remainder(kVocabulary).view({rows, all});
  MicroBatch whole;
  whole.input_ids = ids.cuda();
  const at::Tensor expected = predict(whole);
  MicroBatch packed;
  std::vector<at::Tensor> pieces;
  std::vector<int64_t> last, lengths_of_all = lengths;
  for (int64_t row = 0, end = 0; row < rows; ++row) {
    const int64_t length = lengths[static_cast<size_t>(row)];
    pieces.push_back(ids[row].narrow(0, 0, length));
    last.push_back((end += length) - 1);
  }
  lengths_of_all.push_back(behind);
  pieces.push_back(at::full({behind}, 3, at::kLong));
  const at::Tensor end_to_end = at::cat(pieces);
  packed.input_ids = end_to_end.unsqueeze(0);
  packed.packed = make_packed_rows(lengths_of_all, end_to_end.numel());
  packed.head_positions = at::tensor(last, at::kLong);
  packed = packed.to(world.device());
  packed.decode_state.cache = std::make_shared<KeyValueCache>(rows, all);
  const at::Tensor length = at::tensor(lengths, at::kLong), row = at::arange(rows);
  near(predict(packed), expected.index({row, length - 1}));
  for (int64_t more = 0; more < 2; ++more) {
    MicroBatch next;
    next.decode_state = {packed.decode_state.cache, (length + more).cuda()};
    next.input_ids = ids.index({row, length + more}).unsqueeze(1).cuda();
    near(predict(next).squeeze(1), expected.index({row, length + more}));
  }
}

void check_all(Communicator& world, const std::string& named) {
  int failures = 0;
  const auto attempt = [&](const std::string& name, const std::function<void()>& check) {
    if (name.find(named) == std::string::npos) return;
    try {
      check();
    } catch (const std::exception& error) {
      std::printf("FAILED %s\n", error.what());
      ++failures;
    }
  };
  const auto compare = [&](const Case& c) { attempt(c.name, [&] { compare_case(world, c); }); };
  const Sizes sizes{.vocabulary = kVocabulary,
                    .hidden = 256,
                    .heads = 4,
                    .layers = 3,
                    .key_heads = 2,
                    .max_positions = kPositions};
  const GenerationOptions greedy{.max_new_tokens = 40,
                                 .without_end_token = true,
                                 .max_positions = kPositions,
                                 .batch_size = 3};
  GenerationOptions ends = greedy, drawn = greedy, few = greedy;
  ends.end_tokens = {1, 5, 77, 300, 301, 302, 303, 304, 305, 306, 307, 308, 309};
  drawn.sampling = SamplingOptions{.temperature = 1.5, .top_k = 50, .top_p = 0.9, .seed = 7};
  few.max_new_tokens = 4, few.batch_size = 8;
  for (const std::string family : {"bloom", "gpt2", "llama"}) {
    const ModelSpec model = causal(sized(family, sizes));
    compare({family + ", greedy", model, family == "gpt2" ? at::kHalf : at::kBFloat16, greedy});
    compare({family + ", end tokens", model, at::kBFloat16, ends});
    compare({family + ", drawn", model, at::kBFloat16, drawn});
    attempt(family + ", scores", [&] {
      require(at::equal(all_scores(world, model, true), all_scores(world, model, false)), family,
              ": scores differ");
    });
  }
  Sizes wide = sizes;
  wide.heads = 2;  // head size 128: no kernel attends to rows one by one with ALiBi
  for (const std::string family : {"bloom", "gpt2", "llama"}) {
    for (const Sizes& of : {sizes, wide}) {
      for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
        const std::string name =
            concat(family, " ", *of.heads, " ", at::toString(type), ", packed");
        attempt(name, [&] { check_packed(world, name, causal(sized(family, of)), type); });
      }
    }
  }
  const ModelSpec bloom = causal(sized("bloom", sizes));
  compare({.name = "fp32", .model = bloom, .dtype = at::kFloat, .options = greedy});
  compare({.name = "few tokens", .model = bloom, .options = few, .recorded = false});
  few.max_new_tokens = 40, few.use_cache = false;
  compare({.name = "without a cache", .model = bloom, .options = few, .recorded = false});
  require(failures == 0, failures, " cases failed");
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  const std::string named = argc > 1 ? argv[1] : "";
  ::setenv("TESSERA_GEMM_TUNING", "0", /*replace=*/1);  // one algorithm per product
  return tessera::run_job({.transport = "nccl"}, [&](tessera::Communicator& world) {
    tessera::testing::check_all(world, named);
  });
}
