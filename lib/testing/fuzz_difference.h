// SPDX-License-Identifier: MIT
#pragma once
// Exception that ends a comparison at the first difference.
#include <ATen/ATen.h>

#include <cmath>
#include <string>

#include "lib/testing/player.h"
#include "tessera/core/error.h"

namespace tessera::testing {

struct Difference {
  std::string text;
};

template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw Difference{concat(parts...)};
}

inline void require_bits(const std::string& what, const Named& actual, const Named& expected) {
  for (const auto& [name, value] : expected) {
    require(actual.contains(name), what, " ", name, " is missing");
    const at::Tensor& other = actual.at(name);
    require(other.sizes() == value.sizes(), what, " ", name, " has shape ", other.sizes(),
            ", expected ", value.sizes());
    const at::Tensor same = other.eq(value).logical_or(other.isnan().logical_and(value.isnan()));
    require(same.all().item<bool>(), what, " ", name, " differs in its bits, by ",
            (other - value).abs().max().item<double>());
  }
  for (const auto& [name, value] : actual) require(expected.contains(name), what, " ", name, "?");
}

inline bool same_bits(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

inline void require_same(const std::string& what, double actual, double expected) {
  require(same_bits(actual, expected), what, " is ", actual, ", expected the bits of ", expected);
}

template <typename Fn>
std::string text_of_difference(const Fn& fn) {
  try {
    fn();
  } catch (const Difference& difference) {
    return difference.text;
  }
  return "";
}

}  // namespace tessera::testing
