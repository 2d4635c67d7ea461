// SPDX-License-Identifier: MIT
#include "lib/plan/traffic.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace tessera {
namespace {

// True for scalars of a step, not tensors of the model.
bool is_of_numbers(const LedgerOperation& o) {
  constexpr int64_t kFew = 8;
  return o.numel <= kFew || o.name == "counts of the batch" || o.name == "loss";
}

// The axis of an operation. DeviceMesh splits the world into its axes first, then into
// DeviceMesh::sharding(), or the expert axis and the holders of the same experts.
std::optional<Axis> axis_of(const LedgerOperation& o, const LedgerCommunicator& communicator) {
  constexpr std::string_view kWorld = "world.";
  const std::string_view name = communicator.name;
  if (!name.starts_with(kWorld)) return std::nullopt;
  if (o.name == "tokens of experts" || o.name == "sums of experts") return Axis::kExpert;
  constexpr int kAxes = 4;
  const int split = name[kWorld.size()] - '0';
  return split < kAxes ? static_cast<Axis>(split) : Axis::kData;
}

// True for replicas of the same shard: the second part of ProcessGroups' data axis.
bool are_replicas(const LedgerCommunicator& communicator) {
  const std::string& name = communicator.name;
  return std::ranges::count(name, '.') == 2 && name[name.rfind('.') + 1] == '1';
}

std::string operation_of(OperationKind kind) {
  std::string name = name_of(kind);
  std::ranges::replace(name, '_', '-');
  return name;
}

std::string purpose_on_data(const LedgerOperation& o, const LedgerCommunicator& communicator) {
  switch (o.kind) {
    case OperationKind::kReduceScatter:
      return "gradients";
    case OperationKind::kAllReduce:
      return are_replicas(communicator) ? "gradients of replicas" : "gradients";
    case OperationKind::kAllGather:
      return std::string_view(o.phase) == "reduce" ? "rows of the embedding's gradient"
                                                   : "parameters";
    default:
      return o.name;
  }
}

bool is_of_holders(const LedgerOperation& o) {
  return o.name == "parameters that several ranks hold";
}

std::string purpose_on_pipeline(const LedgerOperation& o) {
  if (o.kind == OperationKind::kSend) return "activations";
  if (o.kind == OperationKind::kBroadcast) return "ends of the model";
  if (o.kind == OperationKind::kAllReduce && is_of_holders(o)) return "tied gradients";
  return o.kind == OperationKind::kAllGather ? "loss" : "embedding and head";
}

std::string purpose_on_tensor(const LedgerOperation& o, const ModelSpec& model) {
  if (is_of_holders(o)) return "gradients of norms";
  const bool is_head = o.name == model.blocks.back().name;
  if (is_head && o.kind == OperationKind::kAllGather && o.dtype == at::kFloat) return "loss";
  if (is_head || o.name == model.blocks.front().name) return "embedding and head";
  return o.name == "whole matrices" ? "slices of matrices" : "layers";
}

// Named like the values of --context_attention, so that a plan says what auto takes.
std::string purpose_on_context(const LedgerOperation& o) {
  return o.kind == OperationKind::kAllToAll ? "attention by heads" : "attention by keys";
}

void add(std::vector<Traffic>& traffic, Traffic one) {
  const auto known = std::ranges::find_if(traffic, [&](const Traffic& other) {
    return other.what == one.what && other.axis == one.axis && other.ranks == one.ranks;
  });
  if (known == traffic.end()) {
    traffic.push_back(std::move(one));
    return;
  }
  known->bytes += one.bytes;
  if (known->operation.find(one.operation) == std::string::npos) {
    known->operation += ", " + one.operation;
  }
}

}  // namespace

std::vector<Traffic> traffic_of(const CommunicationLedger& ledger, const ModelSpec& model) {
  std::vector<Traffic> traffic;
  for (const LedgerOperation& o : ledger.operations) {
    const LedgerCommunicator& communicator = ledger.communicators[o.communicator];
    const std::optional<Axis> axis = axis_of(o, communicator);
    if (!axis || o.bytes_sent == 0 || is_of_numbers(o)) continue;
    const std::string what = *axis == Axis::kData       ? purpose_on_data(o, communicator)
                             : *axis == Axis::kPipeline ? purpose_on_pipeline(o)
                             : *axis == Axis::kContext  ? purpose_on_context(o)
                             : *axis == Axis::kExpert   ? o.name
                                                        : purpose_on_tensor(o, model);
    add(traffic, {what, operation_of(o.kind), *axis, static_cast<int>(communicator.ranks.size()),
                  static_cast<double>(o.bytes_sent)});
  }
  // Order: gradients first, then what the model sends in its passes.
  std::ranges::stable_sort(traffic, {}, [](const Traffic& t) {
    constexpr std::array kOrder{"gradients",          "rows of the embedding's gradient",
                                "parameters",         "gradients of replicas",
                                "whole matrices",     "slices of matrices",
                                "tied gradients",     "gradients of norms",
                                "activations",        "layers",
                                "tokens of experts",  "sums of experts",
                                "attention by heads", "attention by keys",
                                "embedding and head", "loss"};
    return std::ranges::find(kOrder, t.what) - kOrder.begin();
  });
  return traffic;
}

}  // namespace tessera
