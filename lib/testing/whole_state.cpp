// SPDX-License-Identifier: MIT
#include "lib/testing/whole_state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <numeric>

#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

int64_t product(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// Row-major index in the whole tensor for every element of the piece; -1 for padding.
at::Tensor places_of(const TensorSlice& slice) {
  const at::Tensor local = at::arange(slice.begin, slice.end, at::kLong);
  if (slice.dim < 0) return local;
  const auto dim = static_cast<size_t>(slice.dim);
  const int64_t inner = product(at::IntArrayRef(slice.shape).slice(dim + 1));
  const at::Tensor global = at::full({slice.local_size}, -1, at::kLong);
  for (const TensorSlice::Interval& i : slice.intervals) {
    global.narrow(0, i.local, i.size).copy_(at::arange(i.global, i.global + i.size, at::kLong));
  }
  const at::Tensor row = local.div(inner, "floor");
  const at::Tensor index = global.index_select(0, row.remainder(slice.local_size));
  const at::Tensor outer = row.div(slice.local_size, "floor");
  const at::Tensor place = (outer * slice.shape[dim] + index) * inner + local.remainder(inner);
  return at::where(index.ge(0), place, -1);
}

std::string key_of(const StateTensor& piece) { return piece.name + " " + piece.kind; }

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.eq(b).logical_or(a.ne(a).logical_and(b.ne(b))).all().item<bool>();
}

}  // namespace

void WholeState::take(const std::vector<StateTensor>& pieces) {
  const at::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  for (const StateTensor& piece : pieces) {
    const std::string key = key_of(piece);
    const auto require = [&](bool condition, const auto&... text) {
      check(condition, ErrorCode::kInternal, "state of ", key, ": ", text...);
    };
    const TensorSlice& slice = piece.slice;
    const at::Tensor got = piece.get();
    require(got.dim() == 1 && got.is_contiguous() && got.numel() == slice.numel(),
            "a piece of shape ", got.sizes(), " for elements ", slice.begin, " to ", slice.end);
    const at::Tensor value = got.cpu();
    Whole& whole = wholes_[key];
    if (!whole.values.defined()) {
      whole.shape = slice.shape;
      whole.values = at::zeros({product(slice.shape)}, value.options());
      whole.shares = at::zeros_like(whole.values, at::kDouble);
    }
    require(whole.shape == slice.shape && whole.values.scalar_type() == value.scalar_type(),
            "pieces of different tensors: ", at::IntArrayRef(whole.shape), " ",
            whole.values.scalar_type(), " and ", at::IntArrayRef(slice.shape), " ",
            value.scalar_type());
    const at::Tensor places = places_of(slice), real = places.ge(0);
    require(value.masked_select(real.logical_not()).eq(0).all().item<bool>(),
            "its padding is not zero");
    const at::Tensor to = places.masked_select(real), from = value.masked_select(real);
    const at::Tensor known = whole.shares.index_select(0, to).gt(0);
    require(
        same_bits(whole.values.index_select(0, to).masked_select(known), from.masked_select(known)),
        "two ranks have different values of one element");
    whole.values.index_copy_(0, to, from);
    double share = 1;
    for (const Communicator* ranks : piece.replicas) share /= ranks->size();
    whole.shares.index_add_(0, to, at::full(to.sizes(), share, at::kDouble));
  }
}

std::string WholeState::problem() const {
  for (const auto& [key, whole] : wholes_) {
    const at::Tensor wrong = (whole.shares - 1).abs().gt(1e-9);
    if (!wrong.any().item<bool>()) continue;
    const int64_t first = wrong.nonzero()[0].item<int64_t>();
    return concat("state of ", key, ": element ", first, " of ", whole.values.numel(), " is there ",
                  whole.shares[first].item<double>(), " times, by the replicas' own account");
  }
  return "";
}

void WholeState::give(const std::vector<StateTensor>& pieces) const {
  const at::NoGradGuard no_grad;
  for (const StateTensor& piece : pieces) {
    const auto found = wholes_.find(key_of(piece));
    check(found != wholes_.end() && found->second.shape == piece.slice.shape, ErrorCode::kInternal,
          "state of ", key_of(piece), ": nobody had it");
    const at::Tensor places = places_of(piece.slice);
    const at::Tensor values = found->second.values.index_select(0, places.clamp_min(0));
    piece.set(at::where(places.ge(0), values, 0));
  }
}

std::map<std::string, at::Tensor> WholeState::tensors() const {
  std::map<std::string, at::Tensor> all;
  for (const auto& [key, whole] : wholes_) all.emplace(key, whole.values.view(whole.shape));
  return all;
}

}  // namespace tessera::testing
