// SPDX-License-Identifier: MIT
#pragma once
// How a parameter's value comes from the tensors of a model's files.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/core/json.h"
#include "tessera/model/model_spec.h"

namespace tessera::program {

struct StoredForm {
  enum class Kind { kNone, kTensor, kStack, kConcat, kTranspose, kSlice };
  Kind kind = Kind::kNone;     // none: the files have no such tensor
  std::string name;            // of a tensor
  int64_t dim = 0, other = 0;  // of a transpose: both
  int64_t begin = 0, end = 0;  // of a slice
  std::vector<StoredForm> of;
};

// program.json's "stored": null, a name, or {"kind": "stack" | "concat", "dim", "of": [...]},
// {"kind": "transpose", "dims": [a, b], "of"}, {"kind": "slice", "dim", "begin", "end", "of"}.
// Throws Error(kDataLoss) for another kind.
StoredForm read_stored_form(const Json& json, int depth = 0);

// Extents of stored tensors that only their slices tell: the largest end, by name and dimension.
using SlicedExtents = std::map<std::pair<std::string, int64_t>, int64_t>;
void add_sliced_extents(const StoredForm& form, SlicedExtents& extents);

// Whether the source has all tensors of the form.
bool has_stored(const StoredForm& form, const TensorSource& source);
// The value, of this shape. Parts of a concat are equally long. Throws Error(kDataLoss) with the
// names where they are not, and for what the source does not have.
at::Tensor read_stored(const StoredForm& form, at::IntArrayRef shape, const TensorSource& source,
                       const SlicedExtents& extents);

}  // namespace tessera::program
