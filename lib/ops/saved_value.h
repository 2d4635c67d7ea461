// SPDX-License-Identifier: MIT
#pragma once
// A value of any type that an autograd function saves for backward.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <string>
#include <utility>

namespace tessera {

template <typename Value>
struct SavedValue : torch::CustomClassHolder {
  explicit SavedValue(Value value) : value(std::move(value)) {}
  Value value;
};

template <typename Value>
void save_value(torch::autograd::AutogradContext* context, const std::string& name, Value value) {
  context->saved_data[name] =
      at::IValue::make_capsule(c10::make_intrusive<SavedValue<Value>>(std::move(value)));
}

template <typename Value>
const Value& saved_value(torch::autograd::AutogradContext* context, const std::string& name) {
  const auto holder = context->saved_data[name].toCapsule();  // also kept alive by the context
  return static_cast<const SavedValue<Value>*>(holder.get())->value;
}

}  // namespace tessera
