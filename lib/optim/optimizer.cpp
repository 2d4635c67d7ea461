// SPDX-License-Identifier: MIT
#include "tessera/optim/optimizer.h"

#include <ATen/ops/empty.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <string>
#include <typeinfo>

#include "lib/core/number_text.h"
#include "lib/optim/description.h"
#include "tessera/core/error.h"
#include "tessera/optim/matrix_optimizer.h"

namespace tessera {

std::vector<RangePiece> pieces_of(const OptimizerRange& range) {
  std::vector<RangePiece> pieces;
  const int64_t end = range.begin + range.numel();
  for (const ParameterRange& placed : range.placed) {
    const int64_t from = std::max(placed.begin, range.begin);
    const int64_t until = std::min(placed.begin + placed.numel, end);
    if (from >= until) continue;
    pieces.push_back({placed, from - placed.begin, from - range.begin, until - from});
  }
  return pieces;
}

std::vector<StateFormat> Optimizer::state_formats(bool) const {
  std::vector<StateFormat> formats;
  for (const std::string& name : state_names()) formats.push_back({.name = name});
  return formats;
}

std::string Optimizer::describe() const {
  const Optimizer& self = *this;
  std::string text = c10::demangle(typeid(self).name());
  for (const std::string& name : state_names()) text += " " + name;
  return text;
}

namespace {

std::unique_ptr<Optimizer> of_nothing(const OptimizerFactory& factory) {
  const at::Tensor nothing = at::empty({0}, at::kFloat);
  return factory({{.parameter = nothing, .gradient = nothing}});
}

}  // namespace

std::string describe(const OptimizerFactory& factory) {
  const WholeMatrices* matrices = whole_matrices(factory);
  if (matrices == nullptr) return of_nothing(factory)->describe();
  return concat(matrices->optimizer->describe(), " of matrices, ", describe(matrices->others));
}

std::string described(const std::string& kind,
                      std::initializer_list<std::pair<const char*, double>> numbers) {
  std::string text = kind + "(";
  for (const auto& [name, number] : numbers) {
    text += concat(text.back() == '(' ? "" : ", ", name, "=", exact_text(number));
  }
  return text + ")";
}

std::string trial_text(const at::Tensor& values) {
  std::string text;
  const at::Tensor flat = values.flatten();
  for (int64_t i = 0; i < flat.numel(); ++i) text += printed(" %.2e", flat[i].item<double>());
  return text;
}

StateNeeds state_needs(const OptimizerFactory& factory) {
  if (const WholeMatrices* matrices = whole_matrices(factory)) {
    return state_needs(matrices->others);
  }
  const auto optimizer = of_nothing(factory);
  const auto bytes = [&](bool small) {
    double sum = 0;
    for (const StateFormat& format : optimizer->state_formats(small)) {
      sum += format.bytes_per_element();
    }
    return sum;
  };
  return {optimizer->state_rules(), bytes(false), bytes(true), optimizer->splits_masters()};
}

void refuse_betas(std::span<const OptimizerRange> ranges, const std::string& optimizer) {
  for (const OptimizerRange& range : ranges) {
    check(!range.rule.betas, ErrorCode::kInvalidArgument, "parameter group \"", range.rule.group,
          "\" sets betas, which ", optimizer, " does not have");
  }
}

}  // namespace tessera
