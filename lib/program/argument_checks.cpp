// SPDX-License-Identifier: MIT
#include "lib/program/argument_checks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <string>

#include "tessera/core/error.h"

namespace tessera::program {
namespace {

// The tensor of an argument that may also be a number.
at::Tensor tensor_or_number(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::scalar_tensor(value.toScalar());
}

int64_t least_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
      return std::numeric_limits<int8_t>::min();
    case at::kShort:
      return std::numeric_limits<int16_t>::min();
    case at::kInt:
      return std::numeric_limits<int32_t>::min();
    default:
      return std::numeric_limits<int64_t>::min();
  }
}

int64_t extent_of(const at::Tensor& tensor, int64_t dim) {
  check(dim >= -tensor.dim() && dim < tensor.dim(), ErrorCode::kInvalidArgument, "a tensor of ",
        tensor.dim(), " dimensions has no dimension ", dim);
  return tensor.size(dim);
}

int64_t pieces_of(const std::string& name, const std::vector<c10::IValue>& arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  if (name == "aten::unbind") return extent_of(self, arguments[1].toInt());
  const int64_t number = arguments[1].toInt();
  if (name != "aten::split" && name != "aten::unsafe_split") return number;
  const int64_t extent = extent_of(self, arguments[2].toInt());
  return number <= 0 ? 0 : extent / number + (extent % number != 0 ? 1 : 0);
}

}  // namespace

void check_pieces(const c10::OperatorHandle& handle, const std::vector<c10::IValue>& arguments) {
  const int64_t count = pieces_of(handle.schema().name(), arguments);
  check(count <= kMostPieces, ErrorCode::kDataLoss, "it would make ", count,
        " pieces; programs may make at most ", kMostPieces);
}

void check_division(const std::vector<c10::IValue>& arguments) {
  if (arguments[2].isNone() || arguments[2].toStringView() != "trunc") return;
  const at::Tensor& numerator = arguments[0].toTensor();
  const at::Tensor divisor = tensor_or_number(arguments[1]);
  if (!numerator.is_cpu() || !divisor.is_cpu()) return;
  const at::ScalarType dtype = at::result_type(numerator, divisor);
  if (!at::isIntegralType(dtype, /*includeBool=*/false) || dtype == at::kByte) return;
  const at::Tensor overflows =
      numerator.to(dtype).eq(least_of(dtype)).logical_and(divisor.to(dtype).eq(-1));
  check(!overflows.any().item<bool>(), ErrorCode::kInvalidArgument,
        "the least integer is divided by -1, which has no result in ", dtype);
}

void check_ends(const at::Tensor& ends, int64_t extent) {
  if (ends.is_meta() || ends.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor begins =
      at::cat({at::zeros({1}, ends.options()), ends.narrow(0, 0, ends.numel() - 1)});
  const at::Tensor good = ends.ge(begins).logical_and_(ends.le(extent)).all();
  if (!ends.is_cpu()) {
    at::_assert_async(good, "ends of groups of rows decrease, or lie outside of the tensor");
    return;
  }
  check(good.item<bool>(), ErrorCode::kInvalidArgument, "the ends of groups are ",
        ends.to(at::kLong), ", expected numbers up to ", extent, " that do not decrease");
}

void check_groups(const std::vector<c10::IValue>& arguments) {
  if (arguments[2].isNone()) return;
  const at::Tensor &first = arguments[0].toTensor(), &second = arguments[1].toTensor();
  const at::Tensor& ends = arguments[2].toTensor();
  check(ends.dim() == 1 && first.dim() >= 2 && second.dim() >= 2, ErrorCode::kInvalidArgument,
        "groups of ", first.sizes(), " and ", second.sizes(), " have ends ", ends.sizes(),
        "; expected matrices, and one list of ends");
  if (first.dim() == 2) {
    check_ends(ends, second.dim() == 2 ? first.size(1) : first.size(0));
  } else if (second.dim() == 2) {
    check_ends(ends, second.size(1));
  }
}

}  // namespace tessera::program
