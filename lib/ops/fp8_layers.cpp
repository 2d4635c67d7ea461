// SPDX-License-Identifier: MIT
#include <array>
#include <sstream>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/ops/fp8.h"

namespace tessera {
namespace {

constexpr auto kLayers =
    std::to_array<std::pair<const char*, bool Fp8Layers::*>>({{"qkv", &Fp8Layers::qkv},
                                                              {"o", &Fp8Layers::o},
                                                              {"up", &Fp8Layers::up},
                                                              {"down", &Fp8Layers::down}});

}  // namespace

std::string name_of(const Fp8Layers& layers) {
  if (layers.all()) return "all";
  if (!layers.any()) return "none";
  std::string names;
  for (const auto& [name, has] : kLayers) {
    if (layers.*has) names.append(names.empty() ? "" : ",").append(name);
  }
  return names;
}

Fp8Layers fp8_layers_of(const std::string& names) {
  if (names == "all") return {};
  Fp8Layers layers{.qkv = false, .o = false, .up = false, .down = false};
  if (names == "none") return layers;
  check(!names.empty(), ErrorCode::kInvalidArgument,
        "fp8_layers is empty; give some of qkv,o,up,down, or all");
  std::istringstream parts(names);
  for (std::string part; std::getline(parts, part, ',');) {
    bool known = false;
    for (const auto& [name, has] : kLayers) {
      if (part != name || layers.*has) continue;
      layers.*has = known = true;
    }
    check(known, ErrorCode::kInvalidArgument, "fp8_layers is \"", names, "\", where \"", part,
          "\" is no layer, or there twice; give some of qkv,o,up,down, or all");
  }
  return layers;
}

}  // namespace tessera
