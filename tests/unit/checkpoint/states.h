// SPDX-License-Identifier: MIT
#pragma once
// State of small runs in chosen layouts, and comparison of loaded states.
#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/checkpoint/state.h"
#include "tests/support/ranks.hpp"
#include "tests/unit/checkpoint/layouts.h"

namespace tessera::test {

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};
using Model = std::vector<NamedShape>;

inline Model small_model() {
  return {{"wte.weight", {40, 6}}, {"h.0.qkv.weight", {18, 6}}, {"h.0.bias", {18}}, {"scale", {}}};
}

// Pieces of `rank` of `ranks` when every tensor is divided into `ranks` pieces, with the given
// step's values.
inline std::vector<StateTensor> state_of(const Model& model, int rank, int ranks, double step,
                                         uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<StateTensor> state;
  for (const auto& [name, shape] : model) {
    for (const char* kind : {"parameter", "exp_avg"}) {
      const auto slices = slices_of(shape, random_cut(shape, random));
      for (size_t i = 0; i < slices.size(); ++i) {
        if (static_cast<int>(i) % ranks != rank) continue;
        const double first = step * 1000 + (kind[0] == 'p' ? 0 : 500);
        state.push_back({name, kind, slices[i], values_at(slices[i], first), {}});
      }
    }
  }
  return state;
}

// The same pieces with all values set to one.
inline std::vector<StateTensor> filled(std::vector<StateTensor> state, double value) {
  for (StateTensor& tensor : state) tensor.value = at::full_like(tensor.value, value);
  return state;
}

inline void require_equal(const std::vector<StateTensor>& actual,
                          const std::vector<StateTensor>& expected) {
  require(actual.size() == expected.size(), "number of pieces");
  for (size_t i = 0; i < actual.size(); ++i) {
    require_bit_equal(actual[i].value, expected[i].value, actual[i].name + " " + actual[i].kind);
  }
}

// Loads into different pieces and compares with the state saved at that step.
inline void require_loads(const std::string& path, double step, const Model& model) {
  const Checkpoint checkpoint(path);
  const auto expected = state_of(model, 0, 1, step, 77);
  const auto loaded = filled(expected, -1);
  checkpoint.load(loaded);
  require_equal(loaded, expected);
}

inline std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace tessera::test
