// SPDX-License-Identifier: MIT
#pragma once
// Randomly cut tensors, with each element's position found one by one.
#include <ATen/ATen.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "tessera/checkpoint/state.h"

namespace tessera::test {

struct Cut {
  int dim = -1;
  int64_t ranks = 1;       // sharing the dimension
  int64_t parts = 1;       // parts of the dimension, each shared by all ranks
  int64_t local_size = 0;  // size on a rank, with padding at the end
  int64_t pieces = 1;      // consecutive pieces of the local tensor
};

inline int64_t uniform(std::mt19937_64& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

inline std::vector<int64_t> random_shape(std::mt19937_64& random) {
  std::vector<int64_t> shape;
  for (int64_t d = uniform(random, 0, 3); d > 0; --d) shape.push_back(uniform(random, 1, 9));
  return shape;
}

inline Cut random_cut(const std::vector<int64_t>& shape, std::mt19937_64& random) {
  Cut cut{.pieces = uniform(random, 1, 4)};
  if (shape.empty() || random() % 3 == 0) return cut;
  cut.dim = static_cast<int>(uniform(random, 0, static_cast<int64_t>(shape.size()) - 1));
  const int64_t size = shape[static_cast<size_t>(cut.dim)];
  cut.ranks = uniform(random, 1, 3);
  if (size % 2 == 0 && size / 2 % cut.ranks == 0) cut.parts = uniform(random, 1, 2);
  const int64_t held = (size + cut.ranks - 1) / cut.ranks;
  cut.local_size = cut.parts > 1 ? held : held + uniform(random, 0, 2);
  return cut;
}

// Pieces of all ranks, in rank order.
inline std::vector<TensorSlice> slices_of(const std::vector<int64_t>& shape, const Cut& cut) {
  std::vector<TensorSlice> slices;
  for (int64_t rank = 0; rank < cut.ranks; ++rank) {
    TensorSlice slice{.shape = shape, .dim = cut.dim};
    int64_t numel = 1;
    for (size_t d = 0; d < shape.size(); ++d) {
      numel *= static_cast<int>(d) == cut.dim ? cut.local_size : shape[d];
    }
    if (cut.dim >= 0) {
      slice.local_size = cut.local_size;
      const int64_t part = shape[static_cast<size_t>(cut.dim)] / cut.parts;
      const int64_t share = cut.parts > 1 ? part / cut.ranks : cut.local_size;
      for (int64_t p = 0; p < cut.parts; ++p) {
        const int64_t begin = rank * share, end = std::min(begin + share, part);
        if (begin < end) slice.intervals.push_back({p * share, p * part + begin, end - begin});
      }
    }
    for (int64_t i = 0; i < cut.pieces; ++i) {
      slice.begin = numel * i / cut.pieces;
      slice.end = numel * (i + 1) / cut.pieces;
      slices.push_back(slice);
    }
  }
  return slices;
}

// For each element of the slice, its index in the whole tensor; -1: padding.
inline std::vector<int64_t> places(const TensorSlice& slice) {
  std::vector<int64_t> result;
  for (int64_t element = slice.begin; element < slice.end; ++element) {
    int64_t rest = element, place = 0, stride = 1;
    for (size_t d = slice.shape.size(); d-- > 0;) {
      const bool cut = static_cast<int>(d) == slice.dim;
      const int64_t extent = cut ? slice.local_size : slice.shape[d];
      int64_t index = rest % extent;
      rest /= extent;
      if (cut) {
        int64_t found = -1;
        for (const auto& [local, global, size] : slice.intervals) {
          if (index >= local && index < local + size) found = global + index - local;
        }
        index = found;
      }
      place = index < 0 || place < 0 ? -1 : place + index * stride;
      stride *= slice.shape[d];
    }
    result.push_back(place);
  }
  return result;
}

// Elements with the value of their index plus `first`; padding is -1.
inline at::Tensor values_at(const TensorSlice& slice, double first) {
  const at::Tensor value = at::empty({slice.numel()}, at::kFloat);
  float* element = value.mutable_data_ptr<float>();
  for (const int64_t place : places(slice)) {
    *element++ = place < 0 ? -1.0F : static_cast<float>(first + static_cast<double>(place));
  }
  return value;
}

}  // namespace tessera::test
