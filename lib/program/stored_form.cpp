// SPDX-License-Identifier: MIT
#include "lib/program/stored_form.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::program {
namespace {

constexpr int kMostForms = 8;
constexpr int64_t kMostDim = 15, kMostExtent = int64_t{1} << 40;

StoredForm of_parts(const Json& json, StoredForm::Kind kind, int depth) {
  StoredForm form{.kind = kind, .dim = json.at("dim").as_int64(0, kMostDim)};
  for (const Json& part : json.at("of").items()) {
    form.of.push_back(read_stored_form(part, depth + 1));
    if (form.of.back().kind == StoredForm::Kind::kNone) part.fail("expected a tensor");
  }
  if (form.of.empty()) json.at("of").fail("expected at least one tensor");
  return form;
}

StoredForm of_single(const Json& json, StoredForm form, int depth) {
  form.of.push_back(read_stored_form(json.at("of"), depth + 1));
  if (form.of.back().kind == StoredForm::Kind::kNone) json.at("of").fail("expected a tensor");
  return form;
}

void check_dim(const StoredForm& form, at::IntArrayRef shape) {
  const auto most = static_cast<int64_t>(shape.size());
  check(form.dim < most && form.other < most, ErrorCode::kDataLoss, "a parameter of shape ", shape,
        " is stored along dimension ", std::max(form.dim, form.other));
}

}  // namespace

StoredForm read_stored_form(const Json& json, int depth) {
  using Kind = StoredForm::Kind;
  if (depth > kMostForms) json.fail(concat("more than ", kMostForms, " forms in each other"));
  if (json.is_null()) return {};
  if (json.is_string()) return {.kind = Kind::kTensor, .name = json.as_string()};
  const std::string kind = json.at("kind").as_string();
  if (kind == "stack") return of_parts(json, Kind::kStack, depth);
  if (kind == "concat") return of_parts(json, Kind::kConcat, depth);
  if (kind == "transpose") {
    const Json dims = json.at("dims");
    return of_single(json,
                     {.kind = Kind::kTranspose,
                      .dim = dims.at(size_t{0}).as_int64(0, kMostDim),
                      .other = dims.at(size_t{1}).as_int64(0, kMostDim)},
                     depth);
  }
  if (kind == "slice") {
    const int64_t begin = json.at("begin").as_int64(0, kMostExtent);
    return of_single(json,
                     {.kind = Kind::kSlice,
                      .dim = json.at("dim").as_int64(0, kMostDim),
                      .begin = begin,
                      .end = json.at("end").as_int64(begin, kMostExtent)},
                     depth);
  }
  json.fail(concat("weights that are stored as \"", kind,
                   "\" are not supported; expected stack, concat, transpose or slice"));
}

void add_sliced_extents(const StoredForm& form, SlicedExtents& extents) {
  if (form.kind == StoredForm::Kind::kSlice && form.of[0].kind == StoredForm::Kind::kTensor) {
    int64_t& extent = extents[{form.of[0].name, form.dim}];
    extent = std::max(extent, form.end);
  }
  for (const StoredForm& part : form.of) add_sliced_extents(part, extents);
}

bool has_stored(const StoredForm& form, const TensorSource& source) {
  if (form.kind == StoredForm::Kind::kNone) return false;
  if (form.kind == StoredForm::Kind::kTensor) return source.has(form.name);
  return std::all_of(form.of.begin(), form.of.end(),
                     [&](const StoredForm& part) { return has_stored(part, source); });
}

at::Tensor read_stored(const StoredForm& form, at::IntArrayRef shape, const TensorSource& source,
                       const SlicedExtents& extents) {
  using Kind = StoredForm::Kind;
  if (form.kind == Kind::kTensor) return source.read(form.name, shape);
  check(form.kind != Kind::kNone, ErrorCode::kInternal, "nothing is stored");
  check_dim(form, shape);
  std::vector<int64_t> inner = shape.vec();
  int64_t& extent = inner[static_cast<size_t>(form.dim)];
  const auto count = static_cast<int64_t>(form.of.size());
  if (form.kind == Kind::kTranspose) {
    std::swap(extent, inner[static_cast<size_t>(form.other)]);
  } else if (form.kind == Kind::kSlice) {
    const auto known = extents.find({form.of[0].name, form.dim});
    check(known != extents.end() && form.end - form.begin == extent, ErrorCode::kDataLoss,
          "a parameter of shape ", shape, " is the part ", form.begin, " to ", form.end,
          " of what is stored as \"", form.of[0].name, "\"");
    extent = known->second;
  } else if (form.kind == Kind::kStack) {
    check(extent == count, ErrorCode::kDataLoss, "a parameter of shape ", shape, " is stored as ",
          count, " tensors");
    inner.erase(inner.begin() + static_cast<ptrdiff_t>(form.dim));
  } else {
    check(extent % count == 0, ErrorCode::kDataLoss, "a parameter of shape ", shape,
          " is stored as ", count, " tensors that are not equally long");
    extent /= count;
  }
  std::vector<at::Tensor> parts;
  for (const StoredForm& part : form.of) parts.push_back(read_stored(part, inner, source, extents));
  if (form.kind == Kind::kStack) return at::stack(parts, form.dim);
  if (form.kind == Kind::kConcat) return at::cat(parts, form.dim);
  if (form.kind == Kind::kTranspose) return parts[0].transpose(form.dim, form.other).contiguous();
  return parts[0].narrow(form.dim, form.begin, form.end - form.begin).contiguous();
}

}  // namespace tessera::program
