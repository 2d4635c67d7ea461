// SPDX-License-Identifier: MIT
#pragma once
// Expected results from make_generation.py, and the layouts that must reproduce them.
#include <functional>
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/generation/generate.h"
#include "tests/parity/huggingface/fixtures.h"

namespace tessera::testing {

using Ids = std::vector<std::vector<int64_t>>;

constexpr const char* kWritingModels[] = {"generation/bloom", "generation/gpt2", "llama", "causal",
                                          "mistral",          "qwen2",           "qwen3"};

std::vector<int64_t> ids_of(const Json& row);
Json generation_numbers();

struct WritingTrial {
  Fixture fixture;
  Ids prompts, expected;
  GenerationOptions options;

  explicit WritingTrial(const std::string& model);
};

struct WritingLayout {
  ParallelConfig parallel;
  int pipeline = 1, data = 1, tensor = 1;
  int ranks() const { return pipeline * data * tensor; }
  std::string name() const;
};
WritingLayout writing_layout(const std::string& strategy, int pipeline, int data, int tensor);

// Calls fn with the fixture's weights on this rank of the layout.
void with_strategy(Communicator& world, const WritingLayout& layout, const Fixture& fixture,
                   const std::function<void(Strategy&, const DeviceMesh&)>& fn);

// Throws Error(kInternal) with the first row that differs from transformers.
void require_expected(const std::vector<GeneratedRow>& rows, const WritingTrial& trial);

}  // namespace tessera::testing
