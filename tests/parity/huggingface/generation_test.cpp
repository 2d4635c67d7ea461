// What generate() writes is what transformers writes behind the same prompts, under every strategy.
#include <ATen/ATen.h>

#include "tessera/backends/parallel_config.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/json.h"
#include "tessera/generation/generate.h"
#include "tessera/optim/sgd.h"
#include "tests/parity/huggingface/fixtures.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::test;
using namespace tessera::testing;

namespace {

using Ids = std::vector<std::vector<int64_t>>;

constexpr const char* kModels[] = {"generation/bloom", "generation/gpt2", "llama", "causal"};

Ids ids_of(const Json& rows) {
  Ids ids;
  for (const auto& row : rows.items()) {
    ids.emplace_back();
    for (const auto& id : row.items()) ids.back().push_back(id.as_int64());
  }
  return ids;
}

struct Work {
  Fixture fixture;
  Ids prompts, expected;
  GenerationOptions options;

  explicit Work(const std::string& model) : fixture(load_fixture(model)) {
    const Json numbers = Json::parse_file(fixture_path("generation/expected.json"));
    const Json own = numbers.at("models").at(model);
    prompts = ids_of(numbers.at("prompts"));
    expected = ids_of(own.at("ids"));
    options = {.max_new_tokens = numbers.at("max_new_tokens").as_int64(),
               .end_tokens = {own.at("end_token").as_int64()},
               .max_positions = fixture.config().max_positions,
               .vocabulary = fixture.config().vocabulary,
               .batch_size = 4};
  }
};

struct Layout {
  ParallelConfig parallel;
  int pipeline = 1, data = 1, tensor = 1;
};

Layout layout(const std::string& strategy, int pipeline, int data, int tensor) {
  Layout made{.pipeline = pipeline, .data = data, .tensor = tensor};
  made.parallel.strategy = strategy;
  made.parallel.persistence_threshold = 100;
  return made;
}

// On every rank of the layout.
void on_ranks(const Layout& row, const Fixture& fixture,
              const std::function<void(Strategy&, const DeviceMesh&)>& fn) {
  const HuggingFaceDirectory source(fixture.directory);
  run_ranks(row.pipeline * row.data * row.tensor, [&](Communicator& comm) {
    const DeviceMesh mesh(comm, {row.pipeline, row.data, row.tensor});
    auto strategy = make_strategy(row.parallel, mesh);
    strategy->attach(fixture.model, {.device = comm.device(), .source = &source}, make_sgd({}));
    fn(*strategy, mesh);
  });
}

void require_expected(const std::vector<GeneratedRow>& rows, const Work& work) {
  require(rows.size() == work.expected.size(), rows.size(), " rows");
  for (size_t i = 0; i < rows.size(); ++i) {
    require(rows[i].ids == work.expected[i], "prompt ", i, ": ", at::IntArrayRef(rows[i].ids),
            " instead of ", at::IntArrayRef(work.expected[i]));
    const bool ended = rows[i].ids.back() == work.options.end_tokens.front();
    require((rows[i].finish == FinishReason::kEndToken) == ended, "prompt ", i, ": finish reason");
  }
}

void check_layout(const Layout& row, const GenerationOptions& change = {}) {
  CAPTURE(row.parallel.strategy, row.pipeline, row.data, row.tensor);
  for (const std::string name : kModels) {
    INFO(name);
    Work work(name);
    work.options.use_cache = change.use_cache;
    work.options.batch_size = std::min(change.batch_size, work.options.batch_size);
    on_ranks(row, work.fixture, [&](Strategy& strategy, const DeviceMesh& mesh) {
      require_expected(generate(strategy, mesh, work.prompts, work.options), work);
    });
  }
}

}  // namespace

TEST_CASE("generated ids are transformers': one rank, with and without a cache, any batch") {
  for (const bool use_cache : {true, false}) {
    for (const int64_t rows : {1, 3, 4}) {
      CAPTURE(use_cache, rows);
      check_layout(layout("single", 1, 1, 1), {.batch_size = rows, .use_cache = use_cache});
    }
  }
}

TEST_CASE("generated ids are transformers': ddp, zero1 and zero2") {
  for (const std::string strategy : {"ddp", "zero1", "zero2"}) {
    check_layout(layout(strategy, 1, 2, 1));
  }
}

TEST_CASE("generated ids are transformers': parameters sharded, and in host memory") {
  for (const std::string strategy : {"zero3", "fsdp"}) check_layout(layout(strategy, 1, 3, 1));
  for (const int ranks : {1, 2}) {
    Layout row = layout("zero3", 1, ranks, 1);
    row.parallel.offload.what = Offload::kOptimizerAndParameters;
    check_layout(row);
  }
}

TEST_CASE("generated ids are transformers': stages of a pipeline") {
  for (const bool use_cache : {true, false}) {
    for (const bool shared : {false, true}) {
      Layout row = layout("ddp", 2, 1, 1);
      row.parallel.pipeline.shared_vocabulary = shared;
      check_layout(row, {.use_cache = use_cache});
    }
  }
  Layout row = layout("single", 2, 1, 1);
  row.parallel.pipeline = {.schedule = "interleaved", .chunks = 2};
  check_layout(row);
}

TEST_CASE("generated ids are transformers': tensor ranks") {
  for (const bool sequence_parallel : {false, true}) {
    Layout row = layout("single", 1, 1, 2);
    row.parallel.sequence_parallel = sequence_parallel;
    check_layout(row);
    check_layout(row, {.use_cache = false});
  }
}

TEST_CASE("generated ids are transformers': all three axes") {
  check_layout(layout("zero1", 2, 2, 2));
  Layout row = layout("zero3", 1, 2, 2);
  row.parallel.sequence_parallel = true;
  check_layout(row);
}
