// SPDX-License-Identifier: MIT
#include "lib/plan/value_follower.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "lib/comm/operation_scope.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Reports its rank's operations to the follower, also those of its splits. Wraps a communicator
// that records the ledger, so communicators have the same order.
class FollowingCommunicator final : public Communicator {
 public:
  FollowingCommunicator(std::unique_ptr<Communicator> inner, ValueFollower& follower)
      : inner_(std::move(inner)), follower_(follower), place_(follower.next_communicator()) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  at::Device device() const override { return inner_->device(); }
  std::string transport() const override { return inner_->transport(); }
  int64_t bytes_sent() const override { return inner_->bytes_sent(); }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<FollowingCommunicator>(inner_->split(color, key), follower_);
  }
  std::unique_ptr<Communicator> split_by(
      const std::function<SplitArguments(int)>& arguments) override {
    return std::make_unique<FollowingCommunicator>(inner_->split_by(arguments), follower_);
  }

  Work start(std::span<const Operation> operations) override {
    Work work = inner_->start(operations);
    if (size() == 1) {
      for (const Operation& each : operations) pass_on(each);
      return work;
    }
    const CommunicationLedger& ledger = follower_.ledger();
    const auto all = static_cast<int64_t>(ledger.operations.size());
    auto place = all - static_cast<int64_t>(operations.size());
    const auto start = static_cast<int64_t>(ledger.waited.size()) - 1;
    for (const Operation& each : operations) {
      follower_.rules().collective({each, place_, rank(), size(), place++, start});
    }
    return work;
  }

 private:
  // Copies values itself: the fake communicator copies nothing.
  void pass_on(const Operation& o) {
    if (o.input.defined() && o.output.defined() && o.input.numel() == o.output.numel()) {
      follower_.rules().copy(o.output, o.input, /*fresh=*/false);
    }
  }

  const std::unique_ptr<Communicator> inner_;
  ValueFollower& follower_;
  const size_t place_;
};

bool is(const char* name, const char* operation) { return std::strcmp(name, operation) == 0; }

// True for operators that read no values.
bool is_handling(const char* name) {
  return is(name, "aten::detach") || is(name, "aten::alias") || is(name, "aten::requires_grad_") ||
         is(name, "aten::is_leaf") || is(name, "aten::set_data") || is(name, "aten::data");
}

}  // namespace

ValueFollower*& ValueFollower::current() {
  thread_local ValueFollower* follower = nullptr;
  return follower;
}

ValueFollower::ValueFollower(const CommunicationLedger& ledger)
    : ledger_(ledger), outer_(std::exchange(current(), this)) {
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&ValueFollower::on_start, &ValueFollower::on_end)
          .needsInputs(true)
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

ValueFollower::~ValueFollower() {
  at::removeCallback(callback_);
  current() = outer_;
}

ModelSpec ValueFollower::follow(const ModelSpec& model) {
  ModelSpec followed = model;
  for (const TiedParameter& tie : model.tied) {
    owner_of_alias_[tie.alias_block + "." + tie.alias_parameter] =
        tie.owner_block + "." + tie.owner_parameter;
  }
  for (BlockBuilder& builder : followed.blocks) {
    builder.build = [this, given = builder](const BuildContext& context) {
      std::unique_ptr<Block> block = given.build(context);
      for (const Parameter& parameter : given.parameters_of(*block)) {
        rules_.add_handle(given.name, parameter.name, parameter.tensor);
        const std::string name = given.name + "." + parameter.name;
        if (parameter.placement.partial()) partial_.insert(name);
        if (parameter.placement.cut != nullptr) cut_.insert(name);
      }
      return block;
    };
  }
  return followed;
}

std::unique_ptr<Communicator> ValueFollower::follow(std::unique_ptr<Communicator> world) {
  return std::make_unique<FollowingCommunicator>(std::move(world), *this);
}

std::unique_ptr<at::ObserverContext> ValueFollower::on_start(const at::RecordFunction& fn) {
  if (current() != nullptr) current()->begin(fn);
  return nullptr;
}

void ValueFollower::on_end(const at::RecordFunction& fn, at::ObserverContext*) {
  if (current() != nullptr) current()->end(fn);
}

void ValueFollower::begin(const at::RecordFunction& fn) {
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    if (nodes_++ == 0) begin_node();
    return;
  }
  const c10::ArrayRef<const c10::IValue> inputs = fn.inputs();
  const char* name = fn.name();
  if (watches_ && !is_handling(name)) {
    for (const c10::IValue& input : inputs) {
      if (input.isTensor()) {
        look_at(input.toTensor());
      } else if (input.isTensorList()) {
        for (const at::Tensor& each : input.toTensorVector()) look_at(each);
      }
    }
  }
  if (inputs.empty()) return;
  const bool fresh = nodes_ > 0;
  const bool to_tensor = inputs[0].isTensor() && inputs[0].toTensor().defined();
  if (is(name, "aten::copy_")) {
    rules_.copy(inputs[0].toTensor(), inputs[1].toTensor(), fresh);
  } else if (is(name, "aten::add_") && inputs[1].isTensor()) {
    rules_.add(inputs[0].toTensor(), inputs[1].toTensor(), fresh);
  } else if (is(name, "aten::zero_")) {
    rules_.zero(inputs[0].toTensor());
  } else if (is(name, "aten::fill_") && to_tensor) {
    rules_.overwrite(inputs[0].toTensor());
  } else if (is(name, "aten::_foreach_zero_")) {
    for (const at::Tensor& each : inputs[0].toTensorVector()) rules_.zero(each);
  } else if (is(name, "aten::_foreach_copy_")) {
    const auto to = inputs[0].toTensorVector(), from = inputs[1].toTensorVector();
    for (size_t i = 0; i < to.size(); ++i) rules_.copy(to[i], from[i], fresh);
  } else if (inputs.back().isTensor() && inputs.back().toTensor().defined() && inputs.size() > 1) {
    const auto& named = fn.operator_name();
    const bool writes_last = named && named->overload_name.find("out") != std::string::npos;
    if (writes_last) rules_.overwrite(inputs.back().toTensor());
  }
}

void ValueFollower::end(const at::RecordFunction& fn) {
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    --nodes_;
    return;
  }
  const char* name = fn.name();
  if (!is(name, "aten::_to_copy") && !is(name, "aten::clone")) return;
  const auto inputs = fn.inputs();
  const auto outputs = fn.outputs();
  if (inputs.empty() || outputs.empty() || !inputs[0].isTensor() || !outputs[0].isTensor()) return;
  rules_.copy(outputs[0].toTensor(), inputs[0].toTensor(), nodes_ > 0);
}

// Called when a block's backward begins or continues after another operation.
void ValueFollower::begin_node() {
  if (!watches_) return;
  const std::string_view label = operation_context().label;
  const auto calls = static_cast<int64_t>(ledger_.operations.size());
  if (label.data() == checked_label_ && calls == checked_at_) return;
  checked_label_ = label.data();
  checked_at_ = calls;
  for (const int handle : rules_.handles_of_block(std::string(label))) check_parameter(handle);
}

void ValueFollower::look_at(const at::Tensor& read) {
  if (!read.defined()) return;
  if (const int handle = rules_.handle_of(read); handle >= 0) check_parameter(handle);
}

void ValueFollower::check_parameter(int handle) {
  const at::Tensor& tensor = rules_.tensor_of(handle);
  const std::string& name = rules_.name_of(handle);
  const auto alias = owner_of_alias_.find(name);
  const std::string& owner = alias == owner_of_alias_.end() ? name : alias->second;
  // An alias has its owner's values. Parameters that no strategy adopted are only asked for shapes.
  const bool taken = rules_.is_taken(handle);
  const int values = taken ? handle : &owner == &name ? -1 : rules_.taken(owner);
  if (values < 0 || !tensor.has_storage() || !tensor.is_contiguous() || tensor.numel() == 0) return;
  if (!taken && rules_.parameter(tensor).empty()) return;
  const auto [storage, begin, end] = range_of(tensor);
  const auto item = static_cast<int64_t>(tensor.itemsize());
  int64_t next = begin, old = 0, last_gather = -1;
  for (const auto& each : rules_.parameter(tensor)) {
    const KnownParameter& known = each.what;
    const int64_t index = (each.begin - begin) / item, count = (each.end - each.begin) / item;
    std::string other;
    if (each.begin != next) break;
    if (!rules_.is_of(known.flat, known.element, count, values, index, other)) {
      return report(handle, known.operation,
                    other.empty() ? "the gathered values are not in the parameter's order"
                                  : concat("a block reads values of \"", other, "\" in its place"));
    }
    if (known.gather >= 0 &&
        ledger_.waited[static_cast<size_t>(known.gather)] == CommunicationLedger::kNotWaited) {
      return report(handle, known.operation,
                    "a block reads it before anybody waits for the gather");
    }
    if (known.epoch < rules_.epoch()) {
      old += count;
      last_gather = known.operation;
    }
    next = each.end;
  }
  if (next != end) return report(handle, -1, "a block reads values that were never gathered");
  if (old == 0 || !owners_known_ || !tensor.requires_grad()) return;
  const auto owned = owned_.find(owner);
  const int64_t own = owned == owned_.end() ? 0 : owned->second;
  if (old > own) {
    report(
        handle, last_gather,
        concat("a block reads ", old - own, " of its ", tensor.numel(),
               " elements as they were before the last update: nothing has gathered them since"));
  }
}

void ValueFollower::report(int handle, int64_t operation, const std::string& text) {
  const std::string& name = rules_.name_of(handle);
  if (!reported_.insert(name).second) return;
  problems_.push_back({.rule = CommunicationProblem::Rule::kParameter,
                       .operation = operation,
                       .tensor = name,
                       .phase = operation_context().phase,
                       .text = text});
}

}  // namespace tessera
