// SPDX-License-Identifier: MIT
#pragma once
// What the blocks of a model with adapters have, read off shapes without memory.
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/model/lora.h"

namespace tessera {

class LoraSurvey {
 public:
  // model: with adapters; without: the same before.
  LoraSurvey(const ModelSpec& model, const ModelSpec& without, const LoraRule& rule);

  // Throws Error(kInvalidArgument) for what add_lora() refuses.
  void check_targets() const;
  // A frozen weight takes 4 operations a token, and 2 below everything that is trained.
  void adjust_costs(ModelSpec& model) const;

 private:
  struct Item {
    size_t block = 0;
    std::string stored;  // name without adapters; of an adapter its weight's
    std::string module;  // empty: no weight of a module
    int64_t numel = 0;
    bool matrix = false, adapter = false, trained = false, tied = false;
  };
  bool has_adapter(const std::string& module) const;
  void check_target(const std::string& target) const;
  [[noreturn]] void refuse_unknown(const char* what, const std::string& name, bool matrices) const;

  const LoraRule& rule_;
  std::vector<std::string> blocks_;
  std::vector<Item> items_;
};

}  // namespace tessera
