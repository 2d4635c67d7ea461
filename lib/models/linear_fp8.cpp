// SPDX-License-Identifier: MIT
#include "lib/models/linear_fp8.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "lib/model/tensor_collectives.h"
#include "lib/models/block_products.h"
#include "lib/ops/saved_value.h"

namespace tessera::detail {
namespace {

// The forward operands' format has more digits, that of gradients more range.
constexpr at::ScalarType kValues = at::kFloat8_e4m3fn, kGradients = at::kFloat8_e5m2;

bool has_adapters(const ProductWeights& w) {
  return std::ranges::any_of(w.adapters, &LoraWeights::defined);
}

bool is_trained(const ProductWeights& w) {
  return std::ranges::any_of(w.weights, &at::Tensor::requires_grad);
}

at::Tensor with_columns(const at::Tensor& rows, const at::Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = rows.size(1);
  return rows.view(shape);
}

class Linear : public torch::autograd::Function<Linear> {
 public:
  // Backward reads weights through their handles, whose storage a strategy may have replaced.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            at::TensorList /*seen by autograd*/, const ProductWeights& w,
                            const LinearFp8& products) {
    context->save_for_backward({x});
    save_value(context, "weights", w);
    save_value(context, "products", products);
    return products.forward(x, w);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0], dy = gradients[0];
    const auto& w = saved_value<ProductWeights>(context, "weights");
    const auto& products = saved_value<LinearFp8>(context, "products");
    torch::autograd::variable_list result{products.backward_input(dy, w)};
    const at::Tensor all =
        is_trained(w) ? products.backward_weight(dy, x, w.weights[0].scalar_type()) : at::Tensor();
    int64_t row = 0;
    for (size_t i = 0; i < w.weights.size(); ++i) {
      const int64_t count = w.outputs(i);
      at::Tensor own;
      if (w.weights[i].requires_grad()) own = all.narrow(0, row, count);
      result.push_back(own.defined() && w.in_out ? own.t() : own);
      row += count;
    }
    result.resize(result.size() + 2);  // weights and products as a whole
    return result;
  }
};

}  // namespace

bool is_in_fp8(const DecoderBlockOptions& options, BlockProduct product) {
  if (options.fp8 == Fp8::kOff) return false;
  switch (product) {
    case BlockProduct::kQkv:
      return options.fp8_layers.qkv;
    case BlockProduct::kDense:
      return options.fp8_layers.o;
    case BlockProduct::kUp:
      return options.fp8_layers.up;
    case BlockProduct::kDown:
      return options.fp8_layers.down;
    case BlockProduct::kSharedGate:
      return false;
  }
  return false;
}

at::Tensor* input_largest(const DecoderBlockOptions& options, BlockProduct product) {
  return is_in_fp8(options, product) ? LinearFp8(options, product).input_largest() : nullptr;
}

at::Tensor* gradient_largest(const DecoderBlockOptions& options, BlockProduct product) {
  return is_in_fp8(options, product) ? LinearFp8(options, product).gradient_largest() : nullptr;
}

at::ScalarType LinearFp8::format_of(Operand operand) {
  return operand == Operand::kGradient ? kGradients : kValues;
}

at::Tensor LinearFp8::largest(const at::Tensor& x, Operand operand, Cut cut) const {
  const bool tensorwise = scaling_ == Fp8::kTensorwise;
  const bool shared = axis_.size() > 1 && (tensorwise ? cut != Cut::kNone : cut == Cut::kInner);
  const auto largest = [&] {
    const at::Tensor result = ops::fp8_largest(x, scaling_);
    if (shared) reduce_largest(result, axis_);
    return result;
  };
  if (!tensorwise || pass_ == nullptr) return largest();
  at::Tensor& kept = pass_->magnitudes[key(operand)];
  if (!kept.defined()) kept = largest();
  return kept;
}

at::Tensor* LinearFp8::unknown_largest(Operand operand) const {
  if (scaling_ != Fp8::kTensorwise || pass_ == nullptr || axis_.size() > 1) return nullptr;
  at::Tensor& kept = pass_->magnitudes[key(operand)];
  return kept.defined() ? nullptr : &kept;
}

ops::Fp8Matrix LinearFp8::matrix(const at::Tensor& x, Operand operand, Cut cut) const {
  return ops::fp8_cast(x, largest(x, operand, cut), format_of(operand));
}

ops::Fp8Matrix LinearFp8::rows_of(const at::Tensor& x, Operand operand, Cut cut, bool keeps) const {
  if (!keeps) return matrix(x, operand, cut);
  const ops::Fp8Layouts both = ops::fp8_layouts(x, largest(x, operand, cut), format_of(operand));
  pass_->columns[key(operand)] = both.columns;
  return both.rows;
}

ops::Fp8Matrix LinearFp8::columns_of(const at::Tensor& x, Operand operand, Cut cut) const {
  if (scaling_ == Fp8::kRowwise) return matrix(x.flatten(0, -2).t(), operand, cut);
  if (pass_ != nullptr) {
    if (const auto kept = pass_->columns.extract(key(operand)); !kept.empty()) return kept.mapped();
  }
  const at::Tensor rows = x.flatten(0, -2);
  return ops::fp8_layouts(rows, largest(rows, operand, cut), format_of(operand), {.rows = false})
      .columns;
}

bool LinearFp8::has_input() const {
  return pass_ != nullptr && pass_->columns.contains(key(Operand::kInput));
}

ops::Fp8Matrix LinearFp8::made_weight(const ProductWeights& w, bool transposed) const {
  const at::NoGradGuard no_grad;
  const at::Tensor whole = weight_of(w).detach();
  const Cut cut = cuts_inputs_ ? Cut::kInner : Cut::kRows,
            turned = cuts_inputs_ ? Cut::kRows : Cut::kInner;
  if (!transposed) return matrix(whole, Operand::kWeight, cut);
  if (!has_layouts(whole)) return matrix(whole.t(), Operand::kWeight, turned);
  const at::Tensor magnitude = largest(whole, Operand::kWeight, cut);
  return ops::fp8_layouts(whole, magnitude, kValues, {.rows = false}).columns;
}

// Rows of the transpose have the length that products with output gradients ask for.
bool LinearFp8::has_layouts(const at::Tensor& weight) const {
  return scaling_ == Fp8::kTensorwise && weight.is_contiguous() && weight.size(0) % 16 == 0;
}

// The codes of all the product's weights as one matrix; undefined: they are not stored as codes.
ops::Fp8Matrix LinearFp8::stored_weight(const ProductWeights& w, bool transposed) const {
  ops::Fp8Matrix whole;
  if (copies_ == nullptr || scaling_ != Fp8::kTensorwise) return whole;
  Pieces pieces;
  for (const at::Tensor& weight : w.weights) {
    const ops::Fp8Matrix* const codes = copies_->stored(weight.unsafeGetTensorImpl());
    if (codes == nullptr) return {};
    pieces.push_back(codes->codes.view(at::kByte));
    whole.scale = codes->scale;
  }
  whole.codes = joined(pieces).view(kValues);
  if (transposed == w.in_out) return whole;
  ops::Fp8Matrix turned = ops::fp8_turned(whole);
  const int64_t inner = whole.codes.size(0);  // the other operand's, which is not filled
  if (turned.codes.size(1) != inner) turned.codes = turned.codes.narrow(1, 0, inner).contiguous();
  return turned;
}

ops::Fp8Matrix LinearFp8::weight(const ProductWeights& w, bool transposed) const {
  if (ops::Fp8Matrix codes = stored_weight(w, transposed); codes.defined()) return codes;
  if (copies_ == nullptr || !copies_->keeps()) return made_weight(w, transposed);
  const void* const key = w.weights.front().unsafeGetTensorImpl();
  if (const at::Tensor whole = weight_of(w).detach(); has_layouts(whole)) {
    const Cut cut = cuts_inputs_ ? Cut::kInner : Cut::kRows;
    ops::Fp8Layouts both;
    const auto make = [&] {
      if (!both.rows.defined())
        both = ops::fp8_layouts(whole, largest(whole, Operand::kWeight, cut), kValues);
      return both;
    };
    copies_->copy_of(key, /*transposed=*/true, [&] { return make().columns; });
    return copies_->copy_of(key, transposed, [&] { return make().rows; });
  }
  return copies_->copy_of(key, transposed, [&] { return made_weight(w, transposed); });
}

at::Tensor LinearFp8::forward(const at::Tensor& x, const ProductWeights& w,
                              const ops::Fp8Terms& terms) const {
  const Cut cut = cuts_inputs_ ? Cut::kInner : Cut::kNone;
  // Adapters read x itself in backward.
  const bool keeps = pass_ != nullptr && pass_->keeps_inputs && is_trained(w) && !has_adapters(w);
  const ops::Fp8Matrix input = rows_of(x.flatten(0, -2), Operand::kInput, cut, keeps);
  ops::Fp8Terms in_rows = terms;
  if (terms.residual.defined()) in_rows.residual = terms.residual.flatten(0, -2);
  if (terms.result.defined()) in_rows.result = terms.result.narrow(0, 0, input.codes.size(0));
  const at::Tensor y = ops::fp8_product(input, weight(w, false), x.scalar_type(), in_rows);
  return terms.result.defined() ? terms.result : with_columns(y, x);
}

at::Tensor LinearFp8::backward_input(const at::Tensor& dy, const ProductWeights& w,
                                     const at::Tensor& result) const {
  const Cut cut = cuts_inputs_ ? Cut::kNone : Cut::kInner;
  const bool keeps = pass_ != nullptr && pass_->keeps_gradients && is_trained(w);
  const ops::Fp8Matrix gradient = rows_of(dy.flatten(0, -2), Operand::kGradient, cut, keeps);
  ops::Fp8Terms terms;
  if (result.defined()) terms.result = result.flatten(0, -2);
  const at::Tensor dx = ops::fp8_product(gradient, weight(w, true), dy.scalar_type(), terms);
  return result.defined() ? result : with_columns(dx, dy);
}

at::Tensor LinearFp8::backward_weight(const at::Tensor& dy, const at::Tensor& x,
                                      at::ScalarType dtype, const ops::Fp8Terms& terms) const {
  const ops::Fp8Matrix gradient =
      columns_of(dy, Operand::kGradient, cuts_inputs_ ? Cut::kNone : Cut::kRows);
  const ops::Fp8Matrix input =
      columns_of(x, Operand::kInput, cuts_inputs_ ? Cut::kRows : Cut::kNone);
  return ops::fp8_product(gradient, input, dtype, terms);
}

at::Tensor linear_fp8(const at::Tensor& x, const ProductWeights& w, const at::Tensor& bias,
                      const LinearFp8& products) {
  const std::vector<at::Tensor> seen(w.weights.begin(), w.weights.end());
  const at::Tensor y = Linear::apply(x, at::TensorList(seen), w, products);
  return bias.defined() ? y + bias : y;
}

}  // namespace tessera::detail
