// SPDX-License-Identifier: MIT
#include "lib/program/program_block.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "lib/model/context_collectives.h"
#include "lib/model/seeded_generators.h"
#include "lib/models/decoder_block.h"
#include "lib/models/layer_forward.h"
#include "lib/program/parameter_values.h"
#include "lib/program/rewrites/rewrite.h"
#include "lib/program/rewrites/rotary_tables.h"
#include "tessera/core/error.h"
#include "tessera/model/cut_rows.h"
#include "tessera/model/lora.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera::program {
namespace {

at::Tensor adapter_matrix(const BlockParts& parts, const BlockParameter& parameter,
                          const BuildContext& context) {
  const bool is_a = parameter.name.ends_with(kLoraA);
  const std::vector<int64_t>& shape = parameter.entry.shape;
  const LoraMatrices drawn = lora_matrices(context, parts.index, parameter.adapts,
                                           is_a ? 1 : shape[0], is_a ? shape[1] : 1);
  return is_a ? drawn.a : drawn.b;
}

at::Tensor whole_parameter(const BlockParts& parts, const BlockParameter& parameter, size_t place,
                           const BuildContext& context) {
  const ParameterEntry& entry = parameter.entry;
  if (!parameter.adapts.empty()) return adapter_matrix(parts, parameter, context);
  const bool stored = context.source != nullptr && entry.stored.kind != StoredForm::Kind::kNone;
  if (stored && !has_stored(entry.stored, *context.source) && context.source->has(entry.name)) {
    return context.source->read(entry.name, entry.shape);  // as tessera exports it
  }
  if (stored) return read_stored(entry.stored, entry.shape, *context.source, parts.sliced);
  if (context.device.is_meta()) {
    return at::empty(entry.shape, at::dtype(at::kFloat).device(at::kMeta));
  }
  check(entry.init.has_value(), ErrorCode::kInvalidArgument, "block ", parts.name, ": parameter \"",
        entry.name, "\" is among no weights, and program.json does not say how it is drawn");
  if (entry.init->kind == Init::Kind::kTensor) {
    const at::Tensor value = parts.constants->read(entry.init->constant, at::kFloat, true);
    check(value.sizes() == at::IntArrayRef(entry.shape), ErrorCode::kDataLoss, "block ", parts.name,
          ": \"", entry.init->constant, "\" is ", value.sizes(), ", expected ",
          at::IntArrayRef(entry.shape));
    return value;
  }
  return draw(*entry.init, entry.shape, block_seed(block_seed(context.seed, parts.index), place));
}

// The value as the graph was exported with it.
at::Tensor in_dtype_of(const at::Tensor& tensor, const Value& value) {
  return value.dtype && tensor.scalar_type() != *value.dtype ? tensor.to(*value.dtype) : tensor;
}

// The user's input for one row of so many tokens, which enters a table's shape or places alone.
at::Tensor plain_input(const std::string& name, const Value& value, int64_t length,
                       at::Device device) {
  const auto options = at::dtype(value.dtype.value_or(at::kLong)).device(device);
  if (name == "position_ids") return at::arange(length, options).unsqueeze(0);
  if (name == "attention_mask") return at::ones({1, length}, options);
  return at::zeros({1, length}, options);
}

}  // namespace

ProgramBlock::ProgramBlock(std::shared_ptr<const BlockParts> parts, const BuildContext& context)
    : parts_(std::move(parts)),
      device_(context.device),
      axis_(context),
      index_(context.chained_as.empty() ? parts_->index : context.chained_index) {
  const at::NoGradGuard no_grad;
  add_parameters(context);
  add_buffers(context);
  // Adapters need each product by itself.
  runs_joined_ =
      context.lora == nullptr && std::all_of(parts_->variants.begin(), parts_->variants.end(),
                                             [](const BlockVariant& one) { return one.joined; });
  for (const BlockVariant& variant : parts_->variants) {
    main_.push_back(bind(variant, runs_joined_ ? *variant.joined : variant.main));
    auxiliary_.emplace_back();
    if (variant.auxiliary) auxiliary_.back() = bind(variant, *variant.auxiliary);
    before_product_.emplace_back();
    if (context.lora == nullptr && variant.product) {
      before_product_.back() = bind(variant, variant.product->before);
    }
  }
}

bool ProgramBlock::supports_kv_cache() const {
  return supports_packed_rows() &&
         std::all_of(parts_->variants.begin(), parts_->variants.end(),
                     [](const BlockVariant& variant) { return variant.decodes; });
}

// Operators that keep tokens apart read no values on the host, but for experts, whose products wait
// for counts in some dtypes.
bool ProgramBlock::is_recordable(bool /*training*/) const {
  const auto records = [&](const BlockVariant& variant) {
    const bool loss = !parts_->loss || (parts_->loss == LossKind::kCausal && before_product_[0]);
    const std::vector<Node>& nodes = variant.main.interpreter->graph().nodes;
    const bool waits = std::ranges::find(nodes, "tessera.experts", &Node::target) != nodes.end();
    return loss && axis_.size() == 1 && variant.decodes && !waits &&
           !variant.main.interpreter->draws();
  };
  return std::all_of(parts_->variants.begin(), parts_->variants.end(), records);
}

bool ProgramBlock::defers_gradients(const at::Tensor& hidden, const BlockContext& context) const {
  return runs_joined_ && is_one_layer(main_.front().piece->interpreter->graph()) &&
         has_fused_kernels(hidden, context);
}

bool ProgramBlock::supports_packed_rows() const {
  const bool of_tokens = !parts_->loss || parts_->loss == LossKind::kCausal;
  return of_tokens &&
         std::all_of(parts_->variants.begin(), parts_->variants.end(),
                     [](const BlockVariant& variant) { return variant.unpacked.empty(); });
}

void ProgramBlock::add_parameters(const BuildContext& context) {
  for (size_t i = 0; i < parts_->parameters.size(); ++i) {
    const BlockParameter& parameter = parts_->parameters[i];
    at::Tensor tensor;
    if (parameter.alias) {
      tensor = tied_placeholder(
                   cut_shape(parameter.name, parameter.entry.shape, parameter.cut, axis_), device_)
                   .set_requires_grad(parameter.entry.trained);
    } else {
      tensor = whole_parameter(*parts_, parameter, parameter.drawn_as, context)
                   .to(device_)
                   .to(at::kFloat)
                   .set_requires_grad(parameter.entry.trained);
    }
    const bool decays = parameter.entry.shape.size() >= 2;
    parameters_.push_back({parameter.name, tensor, decays});
    if (axis_.size() > 1 && !parameter.alias) {
      parameters_.back() = cut_parameter(parameter.name, tensor, decays, parameter.cut, axis_);
      parameters_.back().tensor.set_requires_grad(parameter.entry.trained);
    } else {
      parameters_.back().placement = place(parameter.entry.shape, parameter.cut, axis_);
    }
    parameters_.back().fp32_state = parameter.is_table;
    parameters_.back().lazy_zero_gradient = parameter.entry.shape.size() >= 2;
  }
}

void ProgramBlock::add_buffers(const BuildContext& context) {
  for (const BlockBuffer& buffer : parts_->buffers) {
    const bool stored =
        context.source != nullptr && !buffer.stored.empty() && context.source->has(buffer.stored);
    at::Tensor value;
    if (device_.is_meta()) {
      value = at::empty(buffer.shape, at::dtype(buffer.dtype).device(device_));
    } else if (stored) {
      value = context.source->read(buffer.stored, buffer.shape);
    } else {
      value = parts_->constants->read(buffer.name, parts_->variants.front().dtype,
                                      parts_->variants.front().training);
    }
    check(value.sizes() == at::IntArrayRef(buffer.shape), ErrorCode::kDataLoss, "block ",
          parts_->name, ": buffer \"", buffer.name, "\" is ", value.sizes(), ", expected ",
          at::IntArrayRef(buffer.shape));
    buffers_.push_back({buffer.name, value.to(device_, buffer.dtype).contiguous(),
                        buffer.changes ? parts_->data_rank : -1});
  }
}

ProgramBlock::BoundPiece ProgramBlock::bind(const BlockVariant& variant, const BlockPiece& piece) {
  BoundPiece bound{.piece = &piece};
  for (const GraphInput& input : piece.inputs) {
    bound.bindings.push_back(bind(variant, piece, input));
  }
  for (const BlockTable& table : piece.tables) bound.tables.push_back(bind(variant, table.piece));
  bound.formed.resize(piece.tables.size());
  bound.cache_keys.resize(std::max<size_t>(piece.interpreter->graph().nodes.size(), 1));
  bound.kept.resize(bound.cache_keys.size());
  return bound;
}

ProgramBlock::Binding ProgramBlock::bind(const BlockVariant& variant, const BlockPiece& piece,
                                         const GraphInput& input) {
  Binding binding;
  const auto place_in = [](const auto& entries, const auto& is_it) {
    return std::find_if(entries.begin(), entries.end(), is_it) - entries.begin();
  };
  switch (input.kind) {
    case InputKind::kParameter:
      binding.parameter = static_cast<int64_t>(parts_->place_of(input.name));
      break;
    case InputKind::kUser:
      binding.user = place_in(parts_->user_inputs,
                              [&](const InputEntry& entry) { return entry.name == input.name; });
      break;
    case InputKind::kBuffer: {
      const int64_t place = place_in(
          parts_->buffers, [&](const BlockBuffer& buffer) { return buffer.name == input.name; });
      if (place < static_cast<int64_t>(parts_->buffers.size())) {
        binding.buffer = place;
      } else {
        binding.constant = constant_of(variant, piece, input);
      }
      break;
    }
    case InputKind::kConstant:
      binding.constant = constant_of(variant, piece, input);
      break;
    case InputKind::kHidden:
      binding.hidden = std::stoll(input.name);
      break;
    case InputKind::kTable:
      binding.table = std::stoll(input.name);
      break;
  }
  return binding;
}

at::Tensor ProgramBlock::constant_of(const BlockVariant& variant, const BlockPiece& piece,
                                     const GraphInput& input) {
  const Graph& graph = piece.interpreter->graph();
  const Value& value = graph.values[static_cast<size_t>(input.value)];
  std::vector<int64_t> shape;
  for (const Extent& extent : value.sizes) {
    check(extent.expression.empty(), ErrorCode::kDataLoss, graph.file, ": \"", input.name,
          "\" is a constant whose shape is not known");
    shape.push_back(extent.number);
  }
  const at::ScalarType dtype = value.dtype.value_or(at::kFloat);
  if (device_.is_meta()) return at::empty(shape, at::dtype(dtype).device(device_));
  const at::Tensor read = parts_->constants->read(input.name, variant.dtype, variant.training);
  check(read.sizes() == at::IntArrayRef(shape), ErrorCode::kDataLoss, graph.file, ": constant \"",
        input.name, "\" is ", read.sizes(), ", expected ", at::IntArrayRef(shape));
  return read.to(device_, dtype);
}

size_t ProgramBlock::choose(const at::Tensor& hidden, bool training) const {
  at::ScalarType dtype = at::kFloat;
  if (!parameters_.empty()) {
    dtype = parameters_.front().tensor.scalar_type();
  } else if (hidden.defined() && hidden.is_floating_point()) {
    dtype = hidden.scalar_type();
  }
  for (size_t i = 0; i < parts_->variants.size(); ++i) {
    const BlockVariant& variant = parts_->variants[i];
    if (variant.dtype == dtype && variant.training == training) return i;
  }
  fail(ErrorCode::kInvalidArgument, "block ", parts_->name, ": the directory has no program in ",
       dtype, training ? " for training" : " for evaluation",
       "; casts are part of a program, so export one for each dtype (--dtype)");
}

at::Tensor ProgramBlock::buffer_for(const Binding& binding, const Value& value, bool written,
                                    const BlockContext& context) const {
  const Buffer& buffer = buffers_[static_cast<size_t>(binding.buffer)];
  if (!written) return in_dtype_of(buffer.tensor, value);
  check(!value.dtype || *value.dtype == buffer.tensor.scalar_type(), ErrorCode::kInvalidArgument,
        "block ", parts_->name, ": buffer \"", buffer.name, "\" would lose its small changes in ",
        *value.dtype, "; train with fp32 parameters");
  return context.will_recompute ? buffer.tensor.clone() : buffer.tensor;
}

at::Tensor ProgramBlock::input_of(const BoundPiece& bound, size_t place,
                                  const std::vector<at::Tensor>& hidden,
                                  const MicroBatch& micro_batch,
                                  const BlockContext& context) const {
  const Graph& graph = bound.piece->interpreter->graph();
  const Value& value = graph.values[static_cast<size_t>(graph.inputs[place].value)];
  const bool written = bound.piece->is_written[place] != 0;
  const Binding& binding = bound.bindings[place];
  const auto own = [&](const at::Tensor& tensor) {
    const at::Tensor cast = in_dtype_of(tensor, value);
    return written && cast.is_same(tensor) ? tensor.clone() : cast;
  };
  if (binding.hidden >= 0) return own(hidden[static_cast<size_t>(binding.hidden)]);
  if (binding.user >= 0) {
    return own(user_input(parts_->name, parts_->user_inputs, static_cast<size_t>(binding.user),
                          micro_batch));
  }
  if (binding.parameter >= 0) {
    return in_dtype_of(parameters_[static_cast<size_t>(binding.parameter)].tensor, value);
  }
  if (binding.buffer >= 0) return buffer_for(binding, value, written, context);
  return written ? binding.constant.clone() : binding.constant;
}

at::Tensor ProgramBlock::table_of(BoundPiece& bound, size_t table, int64_t positions) const {
  std::vector<at::Tensor>& formed = bound.formed[table];
  if (!formed.empty() && formed.back().size(0) >= positions) return formed.back();
  const at::NoGradGuard no_grad;
  const int64_t most = parts_->user_inputs[0].dims[1].most;
  const auto rounded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(positions)));
  const int64_t length = std::max(positions, std::min(rounded, most));
  const BoundPiece& source = bound.tables[table];
  const Graph& graph = source.piece->interpreter->graph();
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < source.bindings.size(); ++i) {
    const GraphInput& input = graph.inputs[i];
    const Value& value = graph.values[static_cast<size_t>(input.value)];
    if (input.kind == InputKind::kUser) {
      inputs.push_back(plain_input(source.piece->inputs[i].name, value, length, device_));
    } else {
      inputs.push_back(input_of(source, i, {}, {}, {}));
    }
  }
  const at::Tensor whole =
      source.piece->interpreter->run(std::move(inputs), RunContext{.device = device_})[0];
  formed.push_back(half_table(whole, bound.piece->tables[table].paired));
  return formed.back();
}

std::vector<at::Tensor> ProgramBlock::run(BoundPiece& bound, const std::vector<at::Tensor>& hidden,
                                          const MicroBatch& micro_batch,
                                          const BlockContext& context) const {
  const Interpreter& interpreter = *bound.piece->interpreter;
  std::optional<SeededGenerators> seeded;
  if (interpreter.draws()) {
    check(context.cut_rows == nullptr, ErrorCode::kInvalidArgument,
          "the exported program draws random numbers in training, as dropout does, by their place "
          "in whole rows, but a context axis of ",
          context.cut_rows ? place_on(*context.cut_rows->ranks).size : 1,
          " ranks cuts the rows; train without dropout, or use a context axis of 1 "
          "(--context_parallel 1)");
    seeded.emplace(device_, block_seed(context.seed, index_));
  }
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < bound.bindings.size(); ++i) {
    const int64_t table = bound.bindings[i].table;
    inputs.push_back(table < 0 ? input_of(bound, i, hidden, micro_batch, context)
                               : table_of(bound, static_cast<size_t>(table),
                                          position_count(micro_batch, context)));
  }
  return interpreter.run(std::move(inputs), {.device = device_,
                                             .micro_batch = &micro_batch,
                                             .block = &context,
                                             .axis = axis_.size() > 1 ? &axis_ : nullptr,
                                             .cache_keys = bound.cache_keys.data(),
                                             .kept = &bound.kept});
}

std::vector<at::Tensor> ProgramBlock::hidden_of(size_t variant, const at::Tensor& hidden,
                                                const MicroBatch& micro_batch) {
  const size_t count = parts_->variants[variant].hidden;
  if (count == 0) return {};
  // Under sequence parallelism the model's ends work on whole rows.
  const bool gathers = axis_.sequence_parallel() && parts_->loss;
  if (gathers) return {gather_whole_tokens(hidden, micro_batch.input_ids.sizes(), axis_)};
  if (count == 1) return {hidden};
  return unpack_(hidden, micro_batch);
}

at::Tensor ProgramBlock::forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                                 const BlockContext& context) {
  const at::Tensor& mask =
      context.cut_rows ? context.cut_rows->attention_mask : micro_batch.attention_mask;
  check_mask(parts_->name, parts_->user_inputs, mask);
  const size_t variant = choose(hidden, context.training);
  const std::vector<at::Tensor> given = hidden_of(variant, hidden, micro_batch);
  if (parts_->loss) return loss_of(variant, given, micro_batch, context);
  const std::vector<at::Tensor> outputs = run(main_[variant], given, micro_batch, context);
  const bool begins = parts_->variants[variant].hidden == 0;
  if (begins && axis_.sequence_parallel()) return own_tokens(outputs.front(), axis_);
  return outputs.size() == 1 ? outputs.front() : pack_(parts_->name, outputs);
}

}  // namespace tessera::program
