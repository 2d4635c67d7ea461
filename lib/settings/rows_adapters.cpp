// SPDX-License-Identifier: MIT
#include "lib/settings/table.h"

namespace tessera::settings::rows {
namespace {

using L = LoraOptions;
using enum Changes;
using enum NameOf;

}  // namespace

std::vector<Setting> adapters() {
  // clang-format off
  return {
      {"lora_r", of<&L::r>, kNumbers,
       "rank of the adapters, which are trained beside frozen weights; 0: every weight is trained",
       {.least = 0, .most = 65536, .tag = "lora", .brief = "rank of LoRA adapters; 0: none",
        .name_of = kPeft}, {.recorded = true}},
      {"lora_alpha", of<&L::alpha>, kNumbers, "adapters count lora_alpha / lora_r times",
       {.above = 0, .most = kLargestReal, .name_of = kPeft}},
      {"lora_dropout", of<&L::dropout>, kNumbers, "of what goes into adapters",
       {.least = 0, .below = 1, .name_of = kPeft}},
      {"lora_target_modules", of<&L::target_modules>, kNumbers,
       "names of layers that get adapters, or ends of names, with commas between them; all-linear: "
       "every linear layer but the output head; unless given, PEFT's choice for the model",
       {.name_of = kPeft}},
      {"lora_target_parameters", of<&L::target_parameters>, kNumbers,
       "tensors of all experts of a layer that get one adapter each, or ends of names, with commas: "
       "mlp.experts.gate_up_proj,mlp.experts.down_proj; --lora_target_modules then names other "
       "layers, or none",
       {.name_of = kPeft}},
      {"lora_modules_to_save", of<&L::modules_to_save>, kNumbers,
       "layers that are trained in full; of classifiers always the head",
       {.name_of = kPeft}},
      {"lora_init", of<&L::init>, kNumbers, "how adapters are drawn; they begin as zero either way",
       {.name_of = kPeft}},
      {"use_rslora", of<&L::use_rslora>, kNumbers,
       "adapters count lora_alpha / sqrt(lora_r) times",
       {.name_of = kPeft}},
      {"adapter", of<&L::adapter>, kNumbers,
       "directory of a saved adapter to train further, instead of --lora_r"},
  };
  // clang-format on
}

}  // namespace tessera::settings::rows
