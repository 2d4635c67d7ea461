// SPDX-License-Identifier: MIT
#pragma once
// Survey of a model with adapters: targets and costs, from shapes on meta.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/model/lora.h"

namespace tessera {

class LoraSurvey {
 public:
  // model: with adapters; without: the original.
  LoraSurvey(const ModelSpec& model, const ModelSpec& without, const LoraRule& rule);

  // Throws Error(kInvalidArgument) for targets that add_lora() rejects.
  void check_targets() const;
  // Reduces costs: a frozen weight takes 4 FLOPs per token, and 2 below all trained parameters.
  void adjust_costs(ModelSpec& model) const;

 private:
  struct Item {
    size_t block = 0;
    std::string stored;  // name without adapters; for an adapter, its weight's
    std::string module;  // empty: not a module's weight
    int64_t numel = 0;
    bool matrix = false, adapter = false, trained = false, tied = false;
    bool experts = false;  // one matrix for each expert
    bool whole = false;    // adapter of a tensor of all experts, for target_parameters
  };
  bool has_adapter(const std::string& module) const;
  // Whether these experts have biases (gpt-oss), and so no layers of their own.
  bool is_one_tensor(const Item& item) const;
  // The share of each block's experts that a token meets; 1 without experts.
  std::vector<double> used_shares(const std::vector<BlockCost>& costs) const;
  void check_target(const std::string& target) const;
  void check_parameter(const std::string& target) const;
  [[noreturn]] void refuse_unknown(const char* what, const std::string& name, bool matrices) const;

  const LoraRule& rule_;
  std::vector<std::string> blocks_;
  std::vector<Item> items_;
};

}  // namespace tessera
