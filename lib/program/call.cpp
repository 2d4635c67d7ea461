// SPDX-License-Identifier: MIT
#include "lib/program/call.h"

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>

#include <algorithm>

#include "lib/program/rewrites/rewrite.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

using c10::IValue;
using c10::TypeKind;

const Item* item_of(const Argument& argument) { return std::get_if<Item>(&argument); }

bool is_none(const Argument& argument) {
  const Item* item = item_of(argument);
  return item != nullptr && std::holds_alternative<std::monostate>(*item);
}

IValue number_of(const Item& item, const Values& values) {
  if (const auto* value = std::get_if<ValueRef>(&item))
    return values[static_cast<size_t>(value->id)];
  if (const auto* whole = std::get_if<int64_t>(&item)) return *whole;
  if (const auto* real = std::get_if<double>(&item)) return *real;
  if (const auto* flag = std::get_if<bool>(&item)) return *flag;
  return {};
}

int64_t integer_of(const IValue& value) {
  if (value.isBool()) return value.toBool() ? 1 : 0;
  check(value.isInt(), ErrorCode::kDataLoss, "expected an integer");
  return value.toInt();
}

double double_of(const IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(integer_of(value));
}

bool bool_of(const IValue& value) {
  return value.isBool() ? value.toBool() : integer_of(value) != 0;
}

// As Python's numbers are beside a tensor: they leave its dtype as it is.
at::Tensor wrapped_number(const IValue& value) {
  const at::Scalar scalar = value.toScalar();
  at::Tensor tensor = at::scalar_tensor(scalar, at::dtype(scalar.type()).device(at::kCPU));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

class ArgumentMaker {
 public:
  ArgumentMaker(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  ArgumentSource make(const c10::Argument& parameter, const Argument& given) const {
    c10::TypePtr type = parameter.real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) {
      if (is_none(given)) return {};
      type = optional->getElementType();
    }
    if (const auto list = type->cast<c10::ListType>()) {
      return list_of(parameter, list->getElementType(), given);
    }
    return one(parameter, type->kind(), given);
  }

 private:
  [[noreturn]] void refuse(const c10::Argument& parameter, const char* expected) const {
    fail(ErrorCode::kDataLoss, place_of(graph_, node_), "argument ", parameter.name(), " is not ",
         expected);
  }

  ValueKind kind_of(const ValueRef& value) const {
    return graph_.values[static_cast<size_t>(value.id)].kind;
  }

  // A number of this node; constant where no value enters.
  ArgumentSource number(const c10::Argument& parameter, const Argument& given,
                        const std::function<IValue(const IValue&)>& convert) const {
    const Item* item = item_of(given);
    if (item == nullptr || std::holds_alternative<std::monostate>(*item)) {
      refuse(parameter, "a number");
    }
    if (const auto* value = std::get_if<ValueRef>(item)) {
      if (kind_of(*value) == ValueKind::kTensor) refuse(parameter, "a number");
      return {.make = [id = value->id, convert](const Values& values, at::Device) {
        return convert(values[static_cast<size_t>(id)]);
      }};
    }
    return {.constant = convert(number_of(*item, {}))};
  }

  ArgumentSource tensor(const c10::Argument& parameter, const Argument& given) const {
    const Item* item = item_of(given);
    const auto* value = item == nullptr ? nullptr : std::get_if<ValueRef>(item);
    if (value != nullptr && kind_of(*value) == ValueKind::kTensor) return {.value = value->id};
    return number(parameter, given,
                  [](const IValue& scalar) { return IValue(wrapped_number(scalar)); });
  }

  ArgumentSource one(const c10::Argument& parameter, TypeKind kind, const Argument& given) const {
    switch (kind) {
      case TypeKind::TensorType:
        return tensor(parameter, given);
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return number(parameter, given, [](const IValue& x) { return IValue(integer_of(x)); });
      case TypeKind::FloatType:
        return number(parameter, given, [](const IValue& x) { return IValue(double_of(x)); });
      case TypeKind::BoolType:
        return number(parameter, given, [](const IValue& x) { return IValue(bool_of(x)); });
      case TypeKind::NumberType:
        return number(parameter, given, [](const IValue& x) { return x; });
      case TypeKind::StringType:
        return constant<std::string>(parameter, given, "a string");
      case TypeKind::ScalarTypeType:
        return constant<at::ScalarType>(parameter, given, "a dtype");
      case TypeKind::LayoutType:
        return constant<at::Layout>(parameter, given, "a layout");
      case TypeKind::MemoryFormatType:
        return constant<at::MemoryFormat>(parameter, given, "a memory format");
      case TypeKind::DeviceObjType:
        if (!std::holds_alternative<RankDevice>(given)) refuse(parameter, "a device");
        return of_rank();
      default:
        refuse(parameter, "of a type that programs may have");
    }
  }

 public:
  static ArgumentSource of_rank() {
    return {.make = [](const Values&, at::Device device) { return IValue(device); }};
  }

 private:
  template <typename T>
  ArgumentSource constant(const c10::Argument& parameter, const Argument& given,
                          const char* expected) const {
    const T* value = std::get_if<T>(&given);
    if (value == nullptr) refuse(parameter, expected);
    return {.constant = IValue(*value)};
  }

  // The members; one number stands for as many as the schema says.
  std::vector<Item> members(const c10::Argument& parameter, const Argument& given) const {
    if (const auto* list = std::get_if<std::vector<Item>>(&given)) return *list;
    const Item* item = item_of(given);
    if (item == nullptr || is_none(given)) refuse(parameter, "a list");
    return std::vector<Item>(static_cast<size_t>(std::max(parameter.N().value_or(1), 1)), *item);
  }

  ArgumentSource list_of(const c10::Argument& parameter, const c10::TypePtr& element,
                         const Argument& given) const {
    const std::vector<Item> items = members(parameter, given);
    switch (element->kind()) {
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return numbers<int64_t>(parameter, items, integer_of);
      case TypeKind::FloatType:
        return numbers<double>(parameter, items, double_of);
      case TypeKind::BoolType:
        return numbers<bool>(parameter, items, bool_of);
      case TypeKind::TensorType:
        return tensors<at::Tensor>(parameter, items, /*optional=*/false);
      case TypeKind::OptionalType:
        if (element->castRaw<c10::OptionalType>()->getElementType()->kind() ==
            TypeKind::TensorType) {
          return tensors<std::optional<at::Tensor>>(parameter, items, /*optional=*/true);
        }
        [[fallthrough]];
      default:
        refuse(parameter, "a list that programs may have");
    }
  }

  template <typename T>
  ArgumentSource numbers(const c10::Argument& parameter, const std::vector<Item>& items,
                         T (*convert)(const IValue&)) const {
    bool known = true;
    for (const Item& item : items) {
      const auto* value = std::get_if<ValueRef>(&item);
      if (std::holds_alternative<std::monostate>(item) ||
          (value != nullptr && kind_of(*value) == ValueKind::kTensor)) {
        refuse(parameter, "a list of numbers");
      }
      known = known && value == nullptr;
    }
    const auto make = [items, convert](const Values& values, at::Device) {
      c10::List<T> list;
      for (const Item& item : items) list.push_back(convert(number_of(item, values)));
      return IValue(std::move(list));
    };
    if (known) return {.constant = make({}, at::kCPU)};
    return {.make = make};
  }

  template <typename T>
  ArgumentSource tensors(const c10::Argument& parameter, const std::vector<Item>& items,
                         bool optional) const {
    std::vector<ValueId> ids;
    for (const Item& item : items) {
      const auto* value = std::get_if<ValueRef>(&item);
      const bool none = std::holds_alternative<std::monostate>(item);
      if (value == nullptr ? !(optional && none) : kind_of(*value) != ValueKind::kTensor) {
        refuse(parameter, "a list of tensors");
      }
      ids.push_back(value == nullptr ? kNoValue : value->id);
    }
    return {.make = [ids](const Values& values, at::Device) {
      c10::List<T> list;
      for (const ValueId id : ids) {
        if (id == kNoValue) {
          list.push_back(T());
        } else {
          list.push_back(values[static_cast<size_t>(id)].toTensor());
        }
      }
      return IValue(std::move(list));
    }};
  }

  const Graph& graph_;
  const Node& node_;
};

c10::OperatorHandle handle_of(const Graph& graph, const Node& node) {
  const size_t first = node.target.find('.'), last = node.target.rfind('.');
  const std::string overload = node.target.substr(last + 1);
  const std::string name =
      node.target.substr(0, first) + "::" + node.target.substr(first + 1, last - first - 1);
  const auto handle = c10::Dispatcher::singleton().findSchema(
      {name, overload == "default" ? std::string() : overload});
  check(handle.has_value(), ErrorCode::kDataLoss, place_of(graph, node),
        "this LibTorch has no such operator");
  return *handle;
}

bool takes_tensor(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                     [](const auto& a) { return a.type()->kind() == TypeKind::TensorType; });
}

const Argument* named(const Node& node, const std::string& name) {
  for (const NamedArgument& argument : node.arguments) {
    if (argument.name == name) return &argument.value;
  }
  return nullptr;
}

void check_outputs(const Graph& graph, const Node& node, const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  if (node.outputs.empty()) return;
  check(node.outputs.size() == returns.size(), ErrorCode::kDataLoss, place_of(graph, node),
        "names ", node.outputs.size(), " results, but the operator has ", returns.size());
  for (size_t i = 0; i < returns.size(); ++i) {
    const bool list = returns[i].type()->kind() == TypeKind::ListType;
    check(list == node.outputs[i].is_list, ErrorCode::kDataLoss, place_of(graph, node), "result ",
          i, list ? " is a list" : " is no list");
    const bool tensor = list || returns[i].type()->kind() == TypeKind::TensorType;
    for (const ValueId id : node.outputs[i].values) {
      check(id == kNoValue ||
                (graph.values[static_cast<size_t>(id)].kind == ValueKind::kTensor) == tensor,
            ErrorCode::kDataLoss, place_of(graph, node), "result ", i,
            tensor ? " is a tensor" : " is no tensor");
    }
  }
}

Call operator_call(const Graph& graph, const Node& node) {
  Call call;
  call.handle = handle_of(graph, node);
  const c10::FunctionSchema& schema = call.handle->schema();
  const ArgumentMaker maker(graph, node);
  size_t used = 0;
  for (const c10::Argument& parameter : schema.arguments()) {
    const Argument* given = named(node, parameter.name());
    used += given != nullptr ? 1 : 0;
    const bool device = parameter.name() == "device";
    if (device && (given == nullptr || is_none(*given)) && !takes_tensor(schema)) {
      call.arguments.push_back(ArgumentMaker::of_rank());
    } else if (given != nullptr) {
      call.arguments.push_back(maker.make(parameter, *given));
    } else {
      check(parameter.default_value().has_value(), ErrorCode::kDataLoss, place_of(graph, node),
            "argument ", parameter.name(), " is missing");
      call.arguments.push_back({.constant = *parameter.default_value()});
    }
  }
  check(used == node.arguments.size(), ErrorCode::kDataLoss, place_of(graph, node),
        "an argument is unknown or given twice; the operator is ", schema);
  check_outputs(graph, node, schema);
  return call;
}

// Their arguments have no names; a list is its members.
Call function_call(const Graph& graph, const Node& node) {
  Call call;
  for (const NamedArgument& argument : node.arguments) {
    std::vector<Item> items;
    if (const Item* one = item_of(argument.value)) {
      items.push_back(*one);
    } else if (const auto* list = std::get_if<std::vector<Item>>(&argument.value)) {
      items = *list;
    }
    check(!items.empty(), ErrorCode::kDataLoss, place_of(graph, node), "expected numbers");
    for (const Item& item : items) {
      const auto* value = std::get_if<ValueRef>(&item);
      check(!std::holds_alternative<std::monostate>(item) &&
                (value == nullptr ||
                 graph.values[static_cast<size_t>(value->id)].kind != ValueKind::kTensor),
            ErrorCode::kDataLoss, place_of(graph, node), "expected numbers");
      call.arguments.push_back(value != nullptr ? ArgumentSource{.value = value->id}
                                                : ArgumentSource{number_of(item, {})});
    }
  }
  const bool one =
      node.outputs.size() == 1 && !node.outputs[0].is_list && node.outputs[0].values.size() == 1;
  check(one, ErrorCode::kDataLoss, place_of(graph, node), "expected one result");
  const ValueId id = node.outputs[0].values[0];
  check(id == kNoValue || graph.values[static_cast<size_t>(id)].kind != ValueKind::kTensor,
        ErrorCode::kDataLoss, place_of(graph, node), "the result is no tensor");
  return call;
}

// Tensors one after the other; one tensor comes out.
Call own_call(const Graph& graph, const Node& node) {
  Call call;
  const auto is_tensor = [&](ValueId id) {
    return id != kNoValue && graph.values[static_cast<size_t>(id)].kind == ValueKind::kTensor;
  };
  for (const NamedArgument& argument : node.arguments) {
    const Item* item = item_of(argument.value);
    const auto* value = item == nullptr ? nullptr : std::get_if<ValueRef>(item);
    check(value != nullptr && is_tensor(value->id), ErrorCode::kDataLoss, place_of(graph, node),
          "expected tensors");
    call.arguments.push_back({.value = value->id});
  }
  check(call.arguments.size() == 3 && node.outputs.size() == 1 &&
            node.outputs[0].values.size() == 1 && is_tensor(node.outputs[0].values[0]),
        ErrorCode::kDataLoss, place_of(graph, node), "expected three tensors and one result");
  return call;
}

Call rewritten_call(const Node& node, const OwnOperator& own) {
  Call call{.own = &own};
  for (const NamedArgument& argument : node.arguments) {
    if (const auto* list = std::get_if<std::vector<Item>>(&argument.value)) {
      std::vector<double> numbers;
      for (const Item& number : *list) numbers.push_back(std::get<double>(number));
      call.arguments.push_back({.constant = std::move(numbers)});
      continue;
    }
    const Item& item = std::get<Item>(argument.value);
    const auto* value = std::get_if<ValueRef>(&item);
    call.arguments.push_back(value != nullptr ? ArgumentSource{.value = value->id}
                                              : ArgumentSource{number_of(item, {})});
  }
  return call;
}

}  // namespace

Call make_call(const Graph& graph, const Node& node) {
  if (const OwnOperator* own = find_own(node.target)) return rewritten_call(node, *own);
  const OperatorTraits* traits = find_operator(node.target);
  Call call = is_size_function(node.target)              ? function_call(graph, node)
              : node.target.starts_with("transformers.") ? own_call(graph, node)
                                                         : operator_call(graph, node);
  call.traits = traits;
  return call;
}

bool draws(const Graph&, const Node& node) {
  const OperatorTraits* traits = find_operator(node.target);
  if (traits == nullptr || !traits->draws) return false;
  const auto constant = [&](const char* name, double fallback) {
    const Argument* given = named(node, name);
    const Item* item = given == nullptr ? nullptr : item_of(*given);
    if (item == nullptr || std::holds_alternative<std::monostate>(*item)) return fallback;
    if (std::holds_alternative<ValueRef>(*item)) return 1.0;
    return double_of(number_of(*item, {}));
  };
  if (node.target == "aten.scaled_dot_product_attention.default") {
    return constant("dropout_p", 0) > 0;
  }
  const bool dropout = node.target.find("dropout") != std::string::npos;
  return !dropout || (constant("p", 0.5) > 0 && constant("train", 1) != 0);
}

}  // namespace tessera::program
