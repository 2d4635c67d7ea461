// SPDX-License-Identifier: MIT
#pragma once
#include "lib/settings/lists.h"
#include "lib/settings/options.h"

namespace tessera::programs {

// The rule from the flags; ignores --adapter.
inline LoraRule lora_rule(const LoraOptions& options) {
  LoraRule rule;
  rule.r = options.r;
  rule.alpha = options.alpha;
  rule.dropout = options.dropout;
  rule.use_rslora = options.use_rslora;
  rule.init = options.init;
  rule.target_modules = items_of(options.target_modules);
  rule.modules_to_save = items_of(options.modules_to_save);
  return rule;
}

}  // namespace tessera::programs
