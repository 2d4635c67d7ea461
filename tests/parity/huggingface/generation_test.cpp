// SPDX-License-Identifier: MIT
// generate() continues prompts exactly as transformers does, in every strategy.
#include <ATen/ATen.h>

#include <cmath>

#include "lib/generation/generate_by.h"
#include "tessera/generation/generate.h"
#include "tessera/generation/log_probabilities.h"
#include "tessera/generation/perplexity.h"
#include "tests/parity/huggingface/generation_work.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::test;
using namespace tessera::testing;

namespace {

// With threads as ranks.
void on_ranks(const WritingLayout& row, const Fixture& fixture,
              const std::function<void(Strategy&, const DeviceMesh&)>& fn) {
  run_ranks(row.ranks(), [&](Communicator& world) { with_strategy(world, row, fixture, fn); });
}

void check_layout(const WritingLayout& row, const GenerationOptions& change = {}) {
  INFO(row.name());
  for (const std::string name : kWritingModels) {
    INFO(name);
    WritingTrial work(name);
    work.options.use_cache = change.use_cache;
    work.options.batch_size = std::min(change.batch_size, work.options.batch_size);
    on_ranks(row, work.fixture, [&](Strategy& strategy, const DeviceMesh& mesh) {
      for (const Beginnings how : {Beginnings::kPadded, Beginnings::kPacked}) {
        if (how == Beginnings::kPacked && !change.use_cache) continue;
        require_expected(generate_by(how, strategy, mesh, work.prompts, work.options), work);
      }
    });
  }
}

}  // namespace

TEST_CASE("generated ids are transformers': one rank, with and without a cache, any batch") {
  for (const bool use_cache : {true, false}) {
    for (const int64_t rows : {1, 3, 4}) {
      CAPTURE(use_cache, rows);
      check_layout(writing_layout("single", 1, 1, 1), {.batch_size = rows, .use_cache = use_cache});
    }
  }
}

TEST_CASE("layers with experts write the same with a cache and without, padded and packed") {
  const Ids prompts{{5, 9, 31, 60, 12}, {7}, {44, 20, 6}};
  GenerationOptions options{.max_new_tokens = 12, .without_end_token = true};
  for (const std::string name : {"qwen3_moe", "olmoe", "mixtral", "gpt_oss"}) {
    INFO(name);
    const Fixture fixture = load_fixture(name);
    on_ranks(writing_layout("zero3", 1, 2, 1), fixture,
             [&](Strategy& strategy, const DeviceMesh& mesh) {
               GenerationOptions again = options;
               again.use_cache = false;
               const auto expected = generate(strategy, mesh, prompts, again);
               for (const Beginnings how : {Beginnings::kPadded, Beginnings::kPacked}) {
                 const auto rows = generate_by(how, strategy, mesh, prompts, options);
                 for (size_t i = 0; i < prompts.size(); ++i) {
                   require(rows[i].ids == expected[i].ids, "row ", i, " differs");
                 }
               }
             });
  }
}

TEST_CASE("generated ids are transformers': ddp, zero1 and zero2") {
  for (const std::string strategy : {"ddp", "zero1", "zero2"}) {
    check_layout(writing_layout(strategy, 1, 2, 1));
  }
}

TEST_CASE("generated ids are transformers': parameters sharded, and in host memory") {
  for (const std::string strategy : {"zero3", "fsdp"})
    check_layout(writing_layout(strategy, 1, 3, 1));
  for (const int ranks : {1, 2}) {
    WritingLayout row = writing_layout("zero3", 1, ranks, 1);
    row.parallel.offload.what = Offload::kOptimizerAndParameters;
    check_layout(row);
  }
}

TEST_CASE("generated ids are transformers': stages of a pipeline") {
  for (const bool use_cache : {true, false}) {
    for (const bool shared : {false, true}) {
      WritingLayout row = writing_layout("ddp", 2, 1, 1);
      row.parallel.pipeline.shared_vocabulary = shared;
      check_layout(row, {.use_cache = use_cache});
    }
  }
  WritingLayout row = writing_layout("single", 2, 1, 1);
  row.parallel.pipeline = {.schedule = "interleaved", .chunks = 2};
  check_layout(row);
}

TEST_CASE("generated ids are transformers': tensor ranks") {
  for (const bool sequence_parallel : {false, true}) {
    WritingLayout row = writing_layout("single", 1, 1, 2);
    row.parallel.sequence_parallel = sequence_parallel;
    check_layout(row);
    check_layout(row, {.use_cache = false});
  }
}

TEST_CASE("generated ids are transformers': all three axes") {
  check_layout(writing_layout("zero1", 2, 2, 2));
  WritingLayout row = writing_layout("zero3", 1, 2, 2);
  row.parallel.sequence_parallel = true;
  check_layout(row);
}

TEST_CASE("perplexity is that of transformers' guide") {
  const Json numbers = generation_numbers();
  const std::vector<int64_t> text = ids_of(numbers.at("text"));
  for (const std::string name : kWritingModels) {
    for (const WritingLayout& row :
         {writing_layout("single", 1, 1, 1), writing_layout("zero3", 1, 3, 1),
          writing_layout("ddp", 2, 1, 1), writing_layout("single", 1, 1, 2)}) {
      INFO(name << " " << row.name());
      on_ranks(row, load_fixture(name), [&](Strategy& strategy, const DeviceMesh& mesh) {
        for (const Json& expected : numbers.at("models").at(name).at("perplexity").items()) {
          const Perplexity actual = perplexity(strategy, mesh, text,
                                               {.window = expected.at("window").as_int64(),
                                                .stride = expected.at("stride").as_int64(),
                                                .batch_size = 2});
          const auto close = [](double a, double b) { return std::abs(a - b) < 1e-4 * b; };
          require(close(actual.value, expected.at("perplexity").as_double()), "perplexity ",
                  actual.value, " instead of ", expected.at("perplexity").as_double());
          require(close(actual.per_token, expected.at("perplexity_per_token").as_double()),
                  "perplexity per token ", actual.per_token);
        }
      });
    }
  }
}

// A text's perplexity in one window follows from its probability after its first token.
TEST_CASE("a text behind a prompt is as likely as the perplexity of the whole says") {
  const std::vector<int64_t> whole = ids_of(generation_numbers().at("text"));
  const std::vector<int64_t> text(whole.begin(), whole.begin() + 12);
  const auto part = [&](size_t begin, size_t end) {
    return std::vector<int64_t>(text.begin() + static_cast<ptrdiff_t>(begin),
                                text.begin() + static_cast<ptrdiff_t>(end));
  };
  const std::vector<Continuation> asked{{part(0, 1), part(1, 12)},
                                        {part(0, 4), {}},
                                        {part(0, 1), part(1, 5)},
                                        {part(0, 5), part(5, 12)},
                                        {part(0, 8), part(8, 9)}};
  for (const WritingLayout& row :
       {writing_layout("single", 1, 1, 1), writing_layout("zero3", 1, 3, 1),
        writing_layout("ddp", 2, 1, 1), writing_layout("single", 1, 1, 2)}) {
    INFO(row.name());
    on_ranks(
        row, load_fixture("generation/bloom"), [&](Strategy& strategy, const DeviceMesh& mesh) {
          const double expected =
              -11 *
              std::log(perplexity(strategy, mesh, text, {.window = 12, .stride = 12}).per_token);
          for (const int64_t batch : {1, 2, 5}) {
            const std::vector<double> logs = log_probabilities(strategy, mesh, asked, batch);
            const auto close = [](double a, double b) { return std::abs(a - b) < 1e-4; };
            require(close(logs[0], expected), "the whole: ", logs[0], " instead of ", expected);
            require(logs[1] == 0, "nothing: ", logs[1]);
            require(close(logs[2] + logs[3], expected), "two parts: ", logs[2] + logs[3]);
            require(logs[4] < 0 && logs[4] > logs[0], "one token: ", logs[4]);
          }
        });
  }
}

TEST_CASE("what is drawn has the probabilities that transformers' processors leave") {
  const Json sampling = generation_numbers().at("sampling");
  std::vector<at::Tensor> rows;
  for (const Json& row : sampling.at("scores").items()) {
    rows.push_back(at::tensor(numbers(row), at::kFloat));
  }
  const at::Tensor scores = at::stack(rows);
  constexpr int64_t kDraws = 4000;
  for (const Json& item : sampling.at("cases").items()) {
    const SamplingOptions options{.temperature = item.at("temperature").as_double(),
                                  .top_k = item.at("top_k").as_int64(),
                                  .top_p = item.at("top_p").as_double()};
    CAPTURE(options.temperature, options.top_k, options.top_p);
    for (int64_t row = 0; row < scores.size(0); ++row) {
      const at::Tensor uniform = (at::arange(kDraws, at::kDouble) + 0.5) / kDraws;
      const at::Tensor drawn = sampled_token(scores[row].expand({kDraws, -1}), uniform, options);
      const at::Tensor share = drawn.bincount({}, scores.size(1)).to(at::kDouble) / kDraws;
      const at::Tensor expected =
          at::tensor(numbers(item.at("probability").at(static_cast<size_t>(row))), at::kDouble);
      CHECK((share - expected).abs().max().item<double>() <= 1.01 / kDraws);
    }
  }
}

TEST_CASE("what is drawn is the same on every layout and in every batch, and follows the seed") {
  WritingTrial work("llama");
  work.options.sampling = SamplingOptions{.temperature = 1.2, .top_p = 0.9, .seed = 3};
  const auto drawn = [&](const WritingLayout& row, const GenerationOptions& options) {
    std::vector<GeneratedRow> rows;
    on_ranks(row, work.fixture, [&](Strategy& strategy, const DeviceMesh& mesh) {
      auto mine = generate(strategy, mesh, work.prompts, options);
      if (mesh.world().rank() == 0) rows = std::move(mine);
    });
    Ids ids;
    for (const GeneratedRow& row : rows) ids.push_back(row.ids);
    return ids;
  };
  const Ids expected = drawn(writing_layout("single", 1, 1, 1), work.options);
  CHECK(expected != work.expected);
  GenerationOptions other = work.options;
  other.batch_size = 3;
  other.use_cache = false;
  CHECK(drawn(writing_layout("single", 1, 1, 1), other) == expected);
  for (const WritingLayout& row : {writing_layout("zero3", 1, 2, 1), writing_layout("ddp", 2, 1, 1),
                                   writing_layout("single", 1, 1, 2)}) {
    CHECK(drawn(row, work.options) == expected);
  }
  other = work.options;
  other.sampling->seed = 4;
  CHECK(drawn(writing_layout("single", 1, 1, 1), other) != expected);
}

TEST_CASE("a row ends where the model has no more positions") {
  WritingTrial work("generation/gpt2");
  work.options.end_tokens.clear();
  work.options.without_end_token = true;
  work.options.max_new_tokens = 30;
  on_ranks(writing_layout("ddp", 1, 2, 1), work.fixture,
           [&](Strategy& strategy, const DeviceMesh& mesh) {
             const auto rows = generate(strategy, mesh, work.prompts, work.options);
             for (size_t i = 0; i < rows.size(); ++i) {
               require(rows[i].ids.size() + work.prompts[i].size() == 16, "row ", i, " has ",
                       rows[i].ids.size(), " tokens");
               require(rows[i].finish == FinishReason::kLength, "finish reason");
             }
           });
}

TEST_CASE("what cannot be generated is refused on all ranks") {
  const WritingTrial work("generation/gpt2");
  const auto refused = [&](const std::string& what, const Ids& prompts,
                           const GenerationOptions& options) {
    on_ranks(writing_layout("zero3", 1, 2, 1), work.fixture,
             [&](Strategy& strategy, const DeviceMesh& mesh) {
               const std::string said = require_error(
                   ErrorCode::kInvalidArgument, [&] { generate(strategy, mesh, prompts, options); },
                   what);
               require(said.find(what) != said.npos, "expected ", what, ", found ", said);
             });
  };
  const auto changed = [&](const std::function<void(GenerationOptions&)>& change) {
    GenerationOptions options = work.options;
    change(options);
    return options;
  };
  refused("prompt 1 is empty", {{5}, {}}, work.options);
  refused("prompt 0 has 16 tokens, but the model has 16 positions", {Ids::value_type(16, 5)},
          work.options);
  refused("prompt 1 holds the id 61", {{5}, {7, 61}}, work.options);
  refused("no end token", work.prompts, changed([](auto& o) { o.end_tokens.clear(); }));
  refused("max_new_tokens is 0", work.prompts, changed([](auto& o) { o.max_new_tokens = 0; }));
  refused("top_p is 0", work.prompts,
          changed([](auto& o) { o.sampling = SamplingOptions{.top_p = 0}; }));
  refused("temperature is 0", work.prompts,
          changed([](auto& o) { o.sampling = SamplingOptions{.temperature = 0}; }));
  on_ranks(writing_layout("ddp", 1, 2, 1), work.fixture,
           [&](Strategy& strategy, const DeviceMesh& mesh) {
             const Ids mine{{5, static_cast<int64_t>(mesh.world().rank())}};
             const std::string said = require_error(
                 ErrorCode::kInvalidArgument, [&] { generate(strategy, mesh, mine, work.options); },
                 "other prompts");
             require(said.find("different prompts") != said.npos, said);
             require(generate(strategy, mesh, {}, work.options).empty(), "no prompts, no rows");
           });
}
