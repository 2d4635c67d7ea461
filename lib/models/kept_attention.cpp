// SPDX-License-Identifier: MIT
#include "lib/models/kept_attention.h"

#include "lib/core/kept_tensors.h"

namespace tessera::detail {

ops::AttentionOutput attend_once(const at::Tensor& qkv, const FusedSettings& settings,
                                 bool is_again) {
  KeptTensors* const kept = settings.options.kept_tensors.get();
  if (kept != nullptr && is_again) {
    KeptTensors::Group group = kept->take();
    return {group[0], group[1], group[2]};
  }
  ops::AttentionOutput made = ops::attention_forward(qkv, settings.options.attention,
                                                     settings.attention_mask, settings.packed);
  if (kept != nullptr) kept->keep({made.output, made.log_sum_exp, made.random_state});
  return made;
}

}  // namespace tessera::detail
