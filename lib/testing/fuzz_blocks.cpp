// SPDX-License-Identifier: MIT
#include "lib/testing/fuzz_blocks.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <cstdlib>
#include <set>
#include <sstream>

#include "tessera/core/error.h"

namespace tessera::testing {

void SeedLog::add(const MicroBatch& batch, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  const void* labels = batch.labels.const_data_ptr();
  if (const auto copy = copies_.find(labels); copy != copies_.end()) labels = copy->second;
  const auto [place, is_new] = by_labels_.emplace(labels, seed);
  ambiguous_ |= !is_new && place->second != seed;
}

void SeedLog::add_copy(const MicroBatch& batch, const MicroBatch& copy) {
  const std::lock_guard lock(mutex_);
  copies_[copy.labels.const_data_ptr()] = batch.labels.const_data_ptr();
}

uint64_t SeedLog::of(const MicroBatch& batch) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_labels_.find(batch.labels.const_data_ptr());
  return found == by_labels_.end() ? 0 : found->second;
}

bool SeedLog::ambiguous() const {
  const std::lock_guard lock(mutex_);
  std::set<uint64_t> seeds;
  for (const auto& [labels, seed] : by_labels_) seeds.insert(seed);
  return ambiguous_ || seeds.size() != by_labels_.size();
}

void SeedLog::clear() {
  const std::lock_guard lock(mutex_);
  by_labels_.clear();
  copies_.clear();
  ambiguous_ = false;
}

std::vector<BlockToken> parse_blocks(const std::string& text, const std::string& kinds) {
  std::vector<BlockToken> blocks;
  std::istringstream words(text == "-" ? "" : text);
  for (std::string word; std::getline(words, word, '.');) {
    check(!word.empty() && kinds.find(word[0]) != std::string::npos, ErrorCode::kInvalidArgument,
          "fuzz case: block \"", word, "\" is none of ", kinds);
    BlockToken block{.kind = word[0]};
    char* end = nullptr;
    block.width = std::strtol(word.c_str() + 1, &end, 10);
    block.frozen = *end == 'f';
    block.first_frozen = *end == 'g';
    blocks.push_back(block);
  }
  return blocks;
}

std::string to_text(const std::vector<BlockToken>& blocks) {
  std::string text;
  for (const BlockToken& block : blocks) {
    text += text.empty() ? "" : ".";
    text += block.kind;
    if (block.width > 0) text += std::to_string(block.width);
    text += block.frozen ? "f" : block.first_frozen ? "g" : "";
  }
  return text.empty() ? "-" : text;
}

std::vector<FuzzCase> smaller_blocks(const FuzzCase& fuzz_case, const std::string& kinds) {
  std::vector<FuzzCase> cases;
  const auto blocks = parse_blocks(fuzz_case.blocks, kinds);
  auto add = [&](const std::vector<BlockToken>& changed) {
    cases.push_back(fuzz_case);
    cases.back().blocks = to_text(changed);
  };
  if (blocks.size() > 1) add({});
  for (size_t half : {blocks.size() / 2, blocks.size() / 4}) {
    if (half > 1) add({blocks.begin() + static_cast<ptrdiff_t>(half), blocks.end()});
    if (half > 1) add({blocks.begin(), blocks.end() - static_cast<ptrdiff_t>(half)});
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    auto changed = blocks;
    changed.erase(changed.begin() + static_cast<ptrdiff_t>(i));
    add(changed);
    changed = blocks;
    if (changed[i].frozen || changed[i].first_frozen) {
      changed[i].frozen = changed[i].first_frozen = false;
      add(changed);
      changed = blocks;
    }
    if (changed[i].width > 2) {
      changed[i].width = 2;
      add(changed);
      changed = blocks;
    }
    if (kinds.find('Q') != std::string::npos && changed[i].kind == 'L') {
      changed[i] = {.kind = 'Q', .width = 1};
      add(changed);
    }
  }
  return cases;
}

bool has_running_statistics(const FuzzCase& fuzz_case) {
  return fuzz_case.model == "modules" && fuzz_case.blocks.find_first_of("SB") != std::string::npos;
}

at::Tensor loss_and_correct(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor scores =
      (logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat)).flatten(0, -2);
  const at::Tensor flat = labels.flatten();
  const at::Tensor loss =
      at::cross_entropy_loss(scores, flat, {}, at::Reduction::Sum, kIgnoredLabel);
  const at::Tensor correct = scores.detach().argmax(-1).eq(flat).sum();
  return at::stack({loss, correct.to(loss.scalar_type())});
}

MicroBatch labelled_rows(int64_t rows, int64_t columns, int64_t classes, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  MicroBatch batch;
  batch.input_ids = at::randn({rows, columns}, generator);
  batch.labels = at::randint(classes, {rows}, generator, at::kLong);
  batch.labels.masked_fill_(at::rand({rows}, generator).lt(0.25), kIgnoredLabel);
  return batch;
}

void draw_parameter(const at::Tensor& parameter, at::Generator& generator) {
  const at::NoGradGuard no_grad;
  parameter.copy_(at::randn(parameter.sizes(), generator) * 0.4 + (parameter.dim() == 1 ? 0.2 : 0));
}

}  // namespace tessera::testing
