// SPDX-License-Identifier: MIT
#pragma once
// Optimizers as text, for Optimizer::describe().
#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>
#include <utility>

namespace tessera {

// "AdamW(beta1=0.9, beta2=0.999)", with every digit.
std::string described(const std::string& kind,
                      std::initializer_list<std::pair<const char*, double>> numbers);

// What a trial step of a user's own function gave: three digits, which all hosts have in common.
std::string trial_text(const at::Tensor& values);

}  // namespace tessera
