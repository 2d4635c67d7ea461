// SPDX-License-Identifier: MIT
#include "lib/model/tensor_collectives.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "lib/ops/saved_value.h"

namespace tessera {
namespace detail {

using torch::autograd::AutogradContext;

at::Tensor as_rows(const at::Tensor& x) { return x.flatten(0, -2).contiguous(); }

Pending start_all_reduce(const at::Tensor& x, const TensorAxis& axis) {
  return {x, axis.comm().all_reduce(x)};
}

void reduce_largest(const at::Tensor& x, const TensorAxis& axis) {
  axis.comm().all_reduce(x, ReduceOp::kMax).wait();
}

Pending start_gather_rows(const at::Tensor& own, int64_t rows, const TensorAxis& axis) {
  const at::Tensor all = at::empty({own.size(0) * axis.size(), own.size(1)}, own.options());
  return {all.narrow(0, 0, rows), axis.comm().all_gather(all, own)};
}

Pending start_reduce_scatter_rows(const at::Tensor& all, const TensorAxis& axis) {
  const int64_t own_count = axis.rows_per_rank(all.size(0));
  const int64_t filling = own_count * axis.size() - all.size(0);
  const at::Tensor input = filling == 0 ? all : at::constant_pad_nd(all, {0, 0, 0, filling});
  const at::Tensor own = at::empty({own_count, all.size(1)}, all.options());
  return {own, axis.comm().reduce_scatter(own, input)};
}

at::Tensor own_rows(const at::Tensor& all, const TensorAxis& axis) {
  const int64_t size = axis.rows_per_rank(all.size(0)), first = axis.rank() * size;
  const int64_t count = std::clamp<int64_t>(all.size(0) - first, 0, size);
  const at::Tensor mine = all.narrow(0, std::min(first, all.size(0)), count);
  return count == size ? mine.clone() : at::constant_pad_nd(mine, {0, 0, 0, size - count});
}

void keep_axis(AutogradContext* context, const TensorAxis& axis) {
  save_value(context, "axis", axis);
}

TensorAxis kept_axis(AutogradContext* context) { return saved_value<TensorAxis>(context, "axis"); }

GradientSink::GradientSink(const at::Tensor& parameter) {
  if (!parameter.defined() || !parameter.requires_grad()) return;
  target = parameter.grad();
  if (!target.defined()) target = for_autograd = at::zeros_like(parameter);
}

}  // namespace detail

namespace {

using detail::Pending;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

std::vector<int64_t> with_columns(at::IntArrayRef leading, int64_t columns) {
  std::vector<int64_t> shape = leading.vec();
  shape.push_back(columns);
  return shape;
}

class CopyTo : public Function<CopyTo> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const TensorAxis& axis) {
    detail::keep_axis(context, axis);
    return x.detach();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor sum = gradients[0].clone(at::MemoryFormat::Contiguous);
    return {detail::start_all_reduce(sum, detail::kept_axis(context)).wait(), {}};
  }
};

class ReduceFrom : public Function<ReduceFrom> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const TensorAxis& axis) {
    const at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
    return detail::start_all_reduce(sum, axis).wait();
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], {}};
  }
};

class GatherTokens : public Function<GatherTokens> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::IntArrayRef tokens,
                            const TensorAxis& axis, bool whole) {
    detail::keep_axis(context, axis);
    context->saved_data["whole"] = whole;
    const int64_t rows = c10::multiply_integers(tokens);
    return detail::start_gather_rows(x.contiguous(), rows, axis)
        .wait()
        .view(with_columns(tokens, x.size(-1)));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const TensorAxis axis = detail::kept_axis(context);
    const at::Tensor all = detail::as_rows(gradients[0]);
    return {context->saved_data["whole"].toBool()
                ? detail::own_rows(all, axis)
                : detail::start_reduce_scatter_rows(all, axis).wait(),
            {},
            {},
            {}};
  }
};

class ScatterTokens : public Function<ScatterTokens> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const TensorAxis& axis,
                            bool sum) {
    detail::keep_axis(context, axis);
    context->saved_data["shape"] = x.sizes().vec();
    const at::Tensor all = detail::as_rows(x);
    return sum ? detail::start_reduce_scatter_rows(all, axis).wait() : detail::own_rows(all, axis);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto shape = context->saved_data["shape"].toIntVector();
    const int64_t rows = c10::multiply_integers(shape) / shape.back();
    const TensorAxis axis = detail::kept_axis(context);
    return {detail::start_gather_rows(gradients[0].contiguous(), rows, axis).wait().view(shape),
            {},
            {}};
  }
};

class GatherColumns : public Function<GatherColumns> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, int64_t columns,
                            const TensorAxis& axis) {
    detail::keep_axis(context, axis);
    context->saved_data["own"] = x.size(-1);
    const at::Tensor own = detail::as_rows(x);
    const int64_t rows = own.size(0);
    const at::Tensor parts =
        detail::start_gather_rows(own, rows * axis.size(), axis).wait().unflatten(0, {-1, rows});
    return parts.transpose(0, 1)
        .flatten(1)
        .narrow(1, 0, columns)
        .reshape(with_columns(x.sizes().slice(0, x.dim() - 1), columns));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const int64_t own = context->saved_data["own"].toInt(), columns = gradients[0].size(-1);
    const int64_t first = detail::kept_axis(context).rank() * own;
    const int64_t count = std::min(own, columns - first);
    return {at::constant_pad_nd(gradients[0].narrow(-1, first, count), {0, own - count}), {}, {}};
  }
};

}  // namespace

at::Tensor copy_to_tensor_ranks(const at::Tensor& x, const TensorAxis& axis) {
  return axis.size() == 1 ? x : CopyTo::apply(x, axis);
}

at::Tensor reduce_from_tensor_ranks(const at::Tensor& x, const TensorAxis& axis) {
  return axis.size() == 1 ? x : ReduceFrom::apply(x, axis);
}

at::Tensor gather_tokens(const at::Tensor& x, at::IntArrayRef tokens, const TensorAxis& axis) {
  return axis.size() == 1 ? x : GatherTokens::apply(x, tokens, axis, /*whole=*/false);
}

at::Tensor gather_whole_tokens(const at::Tensor& x, at::IntArrayRef tokens,
                               const TensorAxis& axis) {
  return axis.size() == 1 ? x : GatherTokens::apply(x, tokens, axis, /*whole=*/true);
}

at::Tensor reduce_scatter_tokens(const at::Tensor& x, const TensorAxis& axis) {
  return axis.size() == 1 ? x : ScatterTokens::apply(x, axis, /*sum=*/true);
}

at::Tensor own_tokens(const at::Tensor& x, const TensorAxis& axis) {
  return axis.size() == 1 ? x : ScatterTokens::apply(x, axis, /*sum=*/false);
}

at::Tensor gather_columns(const at::Tensor& x, int64_t columns, const TensorAxis& axis) {
  return axis.size() == 1 ? x : GatherColumns::apply(x, columns, axis);
}

at::Tensor enter_tensor_ranks(const at::Tensor& x, at::IntArrayRef tokens, const TensorAxis& axis) {
  return axis.sequence_parallel() ? gather_tokens(x, tokens, axis) : copy_to_tensor_ranks(x, axis);
}

at::Tensor leave_tensor_ranks(const at::Tensor& x, const TensorAxis& axis) {
  return axis.sequence_parallel() ? reduce_scatter_tokens(x, axis)
                                  : reduce_from_tensor_ranks(x, axis);
}

}  // namespace tessera
