#pragma once
// How the optimizer treats a parameter, and which parameters a flat buffer holds.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// Made by with_groups() (tessera/model/parameter_groups.h).
struct UpdateRule {
  std::string group;                               // empty: none
  double lr_factor = 1;                            // of the step's learning rate
  std::optional<double> weight_decay;              // instead of the optimizer's, whatever the shape
  std::optional<std::pair<double, double>> betas;  // instead of the optimizer's
  // An optimizer of whole matrices updates it; set by strategies for the optimizer they are given.
  bool whole_matrix = false;
  bool operator==(const UpdateRule&) const = default;
};

// A parameter in a buffer of several.
struct PlacedParameter {
  std::string name;              // "block.parameter"; of tied ones the owner's
  std::vector<int64_t> shape;    // of the whole parameter
  int64_t begin = 0, numel = 0;  // in the buffer; on a tensor axis of the rank's slice
};

}  // namespace tessera
