// SPDX-License-Identifier: MIT
#pragma once
// Makes counted cases.
#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"
#include "tests/unit/plan/counted_cases.h"

namespace tessera::testing {

using Run = std::function<Tensors()>;

// Inputs on one device.
struct Inputs {
  at::Device device;
  at::ScalarType type;

  at::Tensor of(at::IntArrayRef shape, at::ScalarType other) const {
    const auto options = at::TensorOptions(device).dtype(other);
    return device.is_meta() ? at::empty(shape, options) : at::full(shape, 0.5, options);
  }
  at::Tensor operator()(at::IntArrayRef shape) const { return of(shape, type); }
  at::Tensor fp32(at::IntArrayRef shape) const { return of(shape, at::kFloat); }
  at::Tensor places(at::IntArrayRef shape) const {  // all distinct
    const at::Tensor all = at::arange(c10::multiply_integers(shape)).view(shape);
    return device.is_meta() ? of(shape, at::kLong) : all.to(device);
  }
  PackedRows packed(const std::vector<int64_t>& lengths, int64_t sequence) const {
    MicroBatch batch;
    batch.packed = make_packed_rows(lengths, sequence);
    return batch.to(device).packed;
  }
  at::Tensor leaf(at::IntArrayRef shape) const { return (*this)(shape).requires_grad_(); }
};

// Cases of one dtype.
class List {
 public:
  explicit List(at::ScalarType type) : type_(type) {}
  void add(const std::string& name, const std::function<Run(const Inputs&)>& prepare) {
    const at::ScalarType type = type_;
    all.push_back({concat(name, " ", type), [=](at::Device device) {
                     return prepare(Inputs{device, type});
                   }});
  }
  std::vector<CountedCase> all;

 private:
  at::ScalarType type_;
};

// at::scaled_dot_product_attention, as modules of others call it.
void add_library_attention(List& list);

}  // namespace tessera::testing
