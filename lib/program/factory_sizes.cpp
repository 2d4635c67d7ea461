// SPDX-License-Identifier: MIT
#include "lib/program/factory_sizes.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "tessera/core/error.h"

namespace tessera::program {
namespace {

using c10::IValue;

double scalar_of(const IValue& value) { return value.toScalar().toDouble(); }

// Elements by the operator's arguments; doubles do not overflow.
class Elements {
 public:
  Elements(const c10::OperatorHandle& handle, const std::vector<IValue>& arguments)
      : handle_(handle), arguments_(arguments) {}

  double count() const {
    const std::string& name = handle_.schema().name();
    if (name == "aten::arange") return range();
    if (name == "aten::linspace") return scalar_of(get("steps"));
    if (name == "aten::eye")
      return scalar_of(get("n")) * (has("m") ? scalar_of(get("m")) : scalar_of(get("n")));
    if (name == "aten::histc") return scalar_of(get("bins"));
    if (name == "aten::tril_indices" || name == "aten::triu_indices") {
      return 2 * product({get("row").toInt(), get("col").toInt()});
    }
    if (name == "aten::one_hot") return self() * classes();
    if (name == "aten::expand" || name == "aten::broadcast_to") return expanded();
    if (name == "aten::repeat") return self() * product(get("repeats").toIntVector());
    if (name == "aten::tile") return self() * product(get("dims").toIntVector());
    if (name == "aten::repeat_interleave") return self() * scalar_of(get("repeats"));
    if (name == "aten::pad" || name == "aten::constant_pad_nd") return padded();
    if (name.starts_with("aten::upsample")) return upsampled();
    return product(get("size").toIntVector());
  }

 private:
  bool has(const char* name) const {
    return handle_.schema().argumentIndexWithName(name).has_value();
  }
  const IValue& get(const char* name) const {
    const auto index = handle_.schema().argumentIndexWithName(name);
    check(index.has_value(), ErrorCode::kInternal, "no argument ", name);
    return arguments_[static_cast<size_t>(*index)];
  }
  const at::Tensor& input() const { return arguments_.front().toTensor(); }
  double self() const { return static_cast<double>(input().numel()); }

  static double product(const std::vector<int64_t>& sizes) {
    double count = 1;
    for (const int64_t size : sizes) {
      check(size >= -1, ErrorCode::kDataLoss, "an extent is ", size);
      count *= static_cast<double>(size);
    }
    return count;
  }
  // The largest value decides without them.
  double classes() const {
    const double count = scalar_of(get("num_classes"));
    check(count >= 0, ErrorCode::kDataLoss, "the number of classes is ", count,
          "; programs give it");
    return count;
  }
  // -1 stands for the extent of the input, whose last dimensions these are.
  double expanded() const {
    const std::vector<int64_t> sizes = get("size").toIntVector();
    const auto added = static_cast<int64_t>(sizes.size()) - input().dim();
    double count = 1;
    for (size_t i = 0; i < sizes.size(); ++i) {
      check(sizes[i] >= -1, ErrorCode::kDataLoss, "an extent is ", sizes[i]);
      const int64_t dim = static_cast<int64_t>(i) - added;
      const bool kept = sizes[i] == -1 && dim >= 0 && dim < input().dim();
      count *= static_cast<double>(kept ? input().size(dim) : sizes[i]);
    }
    return count;
  }
  double range() const {
    const double first = has("start") ? scalar_of(get("start")) : 0;
    const double step = has("step") ? scalar_of(get("step")) : 1;
    return step == 0 ? 0 : std::ceil((scalar_of(get("end")) - first) / step);
  }
  double padded() const {
    const std::vector<int64_t> pad = get("pad").toIntVector();
    double count = 1;
    for (int64_t i = 0; i < input().dim(); ++i) {
      const auto pair = static_cast<size_t>(2 * i);
      double size = static_cast<double>(input().size(-1 - i));
      if (pair + 1 < pad.size())
        size += static_cast<double>(pad[pair]) + static_cast<double>(pad[pair + 1]);
      count *= size;
    }
    return count;
  }
  double upsampled() const {
    const int64_t outer = input().dim() < 2 ? 1 : input().size(0) * input().size(1);
    if (!get("output_size").isNone()) {
      return static_cast<double>(outer) * product(get("output_size").toIntVector());
    }
    double count = self();
    if (!get("scale_factors").isNone()) {
      for (const double factor : get("scale_factors").toDoubleVector()) count *= factor;
    }
    return count;
  }

  const c10::OperatorHandle& handle_;
  const std::vector<IValue>& arguments_;
};

}  // namespace

void check_elements(const c10::OperatorHandle& handle, const std::vector<c10::IValue>& arguments) {
  const double count = Elements(handle, arguments).count();
  check(count <= static_cast<double>(kMostElements), ErrorCode::kDataLoss, "its output would have ",
        count, " elements; programs may make at most ", kMostElements);
}

namespace {

at::Tensor shape_alone(const at::Tensor& x) {
  if (!x.defined()) return x;
  const at::Tensor shape =
      at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta).requires_grad(false));
  if (x.unsafeGetTensorImpl()->is_wrapped_number()) {
    shape.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return shape;
}

IValue on_meta(const IValue& value) {
  if (value.isTensor()) return shape_alone(value.toTensor());
  if (value.isDevice()) return IValue(at::Device(at::kMeta));
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& member : value.toTensorVector()) list.push_back(shape_alone(member));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& member : value.toOptionalTensorVector()) {
      list.push_back(member ? std::optional(shape_alone(*member)) : std::nullopt);
    }
    return list;
  }
  return value;
}

}  // namespace

void check_results(const c10::OperatorHandle& handle, const std::vector<c10::IValue>& arguments,
                   int64_t most) {
  const at::NoGradGuard no_grad;
  std::vector<IValue> stack;
  for (const IValue& argument : arguments) stack.push_back(on_meta(argument));
  try {
    handle.callBoxed(stack);
  } catch (const c10::Error&) {
    return;
  }
  const auto look = [&](const at::Tensor& result) {
    check(!result.defined() || result.numel() <= most, ErrorCode::kDataLoss,
          "its result would have the shape ", result.sizes(), "; at load at most ", most,
          " elements are tried");
  };
  for (const IValue& result : stack) {
    if (result.isTensor()) look(result.toTensor());
    if (!result.isTensorList()) continue;
    for (const at::Tensor& member : result.toTensorVector()) look(member);
  }
}

}  // namespace tessera::program
