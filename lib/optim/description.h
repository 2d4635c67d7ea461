// SPDX-License-Identifier: MIT
#pragma once
// Descriptions of optimizers for Optimizer::describe().
#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>
#include <utility>

namespace tessera {

// "AdamW(beta1=0.9, beta2=0.999)", with all digits.
std::string described(const std::string& kind,
                      std::initializer_list<std::pair<const char*, double>> numbers);

// Result of a custom function's trial step, in three digits, which all hosts share.
std::string trial_text(const at::Tensor& values);

}  // namespace tessera
