// SPDX-License-Identifier: MIT
// The fine-tuning programs reproduce transformers' training from the same directory and ids.
#include <ATen/ATen.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "tessera/checkpoint/huggingface.h"
#include "tests/parity/huggingface/fixtures.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

std::vector<int64_t> list(const at::Tensor& row) {
  const at::Tensor values = row.to(at::kLong).contiguous();
  return {values.data_ptr<int64_t>(), values.data_ptr<int64_t>() + values.numel()};
}

// Rows of all batches for --train_ids, with unshifted labels.
void write_ids(const Fixture& fixture, const std::string& path) {
  std::ofstream out(path);
  for (const MicroBatch& batch : fixture_batches(fixture)) {
    for (int64_t row = 0; row < batch.input_ids.size(0); ++row) {
      JsonWriter line;
      line.begin_object().field("input_ids", list(batch.input_ids[row]));
      line.field("attention_mask", list(batch.attention_mask[row]));
      if (batch.labels.dim() == 1) {
        line.field("labels", batch.labels[row].item<int64_t>());
      } else {
        const at::Tensor shifted = batch.labels[row];
        line.field("labels", list(at::constant_pad_nd(shifted.slice(0, 0, -1), {1, 0},
                                                      static_cast<double>(kIgnoredLabel))));
      }
      out << line.end_object().text() << "\n";
    }
  }
}

struct Layout {
  std::string strategy;
  int ranks, batch, accumulation;  // their product is the 12 rows of a step
};

void check_program(const std::string& program, const std::string& name, const Layout& layout) {
  INFO(name << " " << layout.strategy << " ranks " << layout.ranks);
  const Fixture fixture = load_fixture(name);
  const Json expected = expected_numbers(fixture), training = expected.at("training");
  const TempDir folder;
  write_ids(fixture, folder.path("ids.jsonl"));
  const std::string command = concat(
      program, " --model ", fixture.directory, " --train_ids ", folder.path("ids.jsonl"),
      " --output_dir ", folder.path("out"), " --strategy ", layout.strategy, " --ranks ",
      layout.ranks, " --per_device_train_batch_size ", layout.batch,
      " --gradient_accumulation_steps ", layout.accumulation, " --shuffle false --max_steps 10",
      " --max_seq_length 14 --logging_steps 1 --learning_rate ",
      training.at("learning_rate").as_double(), " --weight_decay ",
      training.at("weight_decay").as_double(), " --warmup_steps ",
      training.at("warmup_steps").as_int64(), " --max_grad_norm ",
      training.at("max_grad_norm").as_double(), " > ", folder.path("log"), " 2>&1");
  REQUIRE(std::system(command.c_str()) == 0);

  const auto loss = numbers(expected.at("loss")), norm = numbers(expected.at("grad_norm"));
  std::ifstream metrics(folder.path("out/metrics.jsonl"));
  size_t steps = 0;
  for (std::string line; std::getline(metrics, line);) {
    const Json event = Json::parse(line, {}, "metrics.jsonl");
    if (event.at("event").as_string() != "step") continue;
    REQUIRE(steps < loss.size());
    CHECK(event.at("loss").as_double() == Approx(loss[steps]).epsilon(2e-5));
    CHECK(event.at("grad_norm").as_double() == Approx(norm[steps]).epsilon(2e-4));
    ++steps;
  }
  CHECK(steps == 10);

  const HuggingFaceDirectory final(folder.path("out/final"));
  for (const auto& [weight, value] : expected.at("final").members()) {
    // The key part of these biases is rounding noise.
    if (weight.ends_with("query_key_value.bias") || weight.ends_with("c_attn.bias")) continue;
    const SafetensorsEntry* entry = final.files()[0].find(weight);
    REQUIRE(entry != nullptr);
    const double actual = final.read(weight, entry->shape).norm().item<double>();
    CHECK(actual == Approx(value.at("norm").as_double()).epsilon(1e-5));
  }
}

}  // namespace

TEST_CASE("tessera-finetune-squad trains as transformers does") {
  check_program(TESSERA_FINETUNE_SQUAD, "causal", {"single", 1, 6, 2});
  check_program(TESSERA_FINETUNE_SQUAD, "causal", {"zero3", 3, 2, 2});
  check_program(TESSERA_FINETUNE_SQUAD, "gpt2", {"fsdp", 2, 3, 2});
  check_program(TESSERA_FINETUNE_SQUAD, "llama", {"zero2", 2, 2, 3});
}

TEST_CASE("tessera-finetune-classification trains as transformers does") {
  check_program(TESSERA_FINETUNE_CLASSIFICATION, "classification", {"single", 1, 6, 2});
  check_program(TESSERA_FINETUNE_CLASSIFICATION, "classification", {"ddp", 4, 3, 1});
  check_program(TESSERA_FINETUNE_CLASSIFICATION, "gpt2_classification", {"zero1", 2, 6, 1});
  check_program(TESSERA_FINETUNE_CLASSIFICATION, "llama_classification", {"zero3", 2, 6, 1});
}
