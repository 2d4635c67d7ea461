// SPDX-License-Identifier: MIT
#include "backends/common/parameter_visits.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <map>
#include <string>
#include <vector>

#include "backends/common/state_pieces.h"
#include "lib/comm/operation_scope.h"
#include "lib/ops/update.h"

namespace tessera {
namespace {

at::TensorOptions values_on(const ProcessGroups& ranks) {
  return at::TensorOptions().dtype(at::kFloat).device(ranks.data.device());
}

}  // namespace

void complete_all(UnitOptimizer& optimizer, size_t units) {
  for (size_t unit = 0; unit < units; ++unit) optimizer.complete(unit);
}

void ParameterVisits::parameters(const ParameterVisitor& visitor) const {
  complete_all(parts_.optimizer, parts_.model.units.size());
  visit(/*gradients=*/false, visitor);
}

void ParameterVisits::gradients(const ParameterVisitor& visitor) const {
  visit(/*gradients=*/true, visitor);
}

void ParameterVisits::visit(bool gradients, const ParameterVisitor& visitor) const {
  at::NoGradGuard no_grad;
  for (size_t u = 0; u < parts_.model.units.size(); ++u) {
    if (gradients && parts_.model.units[u].frozen) continue;
    const FlatLayout& layout = parts_.model.units[u].layout;
    const ForTensor of(parts_.model.units[u].name);
    at::Tensor full = at::empty({layout.numel()}, values_on(parts_.ranks));
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      const at::Tensor owned = gradients ? parts_.gradients.owned(u, segment)
                               : parts_.model.units[u].frozen
                                   ? parts_.parameters.owned(u, segment)
                                   : parts_.optimizer.master(u, segment).get();
      const at::Tensor part = owned.to(full.options());
      const at::Tensor whole = slice_of(full, layout.segments()[segment]);
      if (layout.shards() == 1) {
        whole.copy_(part);
      } else {
        parts_.ranks.shards_of(parts_.model.units[u]).all_gather(whole, part.contiguous()).wait();
      }
    }
    if (!gradients && parts_.model.units[u].coded()) scale_codes(parts_.model.units[u], full);
    if (gradients && parts_.scale.divided().defined()) full.mul_(parts_.scale.divided());
    for (size_t e = 0; e < layout.entries().size(); ++e) {
      const FlatEntry& entry = layout.entries()[e];
      visitor({parts_.model.units[u].blocks[e], entry.name, view_of(full, entry), entry.placement});
    }
  }
}

void ParameterVisits::buffers(const ParameterVisitor& visitor) const {
  const at::NoGradGuard no_grad;
  for (size_t b = 0; b < parts_.model.blocks.size(); ++b) {
    for (const Buffer& buffer : parts_.model.blocks[b]->buffers()) {
      visitor(
          {parts_.model.names[b], buffer.name, value_of(buffer, parts_.ranks.data), Placement{}});
    }
  }
}

void ParameterVisits::owned_gradients(const GradientVisitor& visitor) const {
  const at::NoGradGuard no_grad;
  parts_.scale.fold();
  parts_.optimizer.gradients_reopened();
  for (size_t u = 0; u < parts_.model.units.size(); ++u) {
    if (parts_.model.units[u].frozen) continue;
    const Communicator* equals = parts_.ranks.shard_replicas_of(parts_.model.units[u]);
    for (const UnitPiece& piece : pieces_of_unit(parts_.model, parts_.ranks, u)) {
      const FlatEntry& entry = parts_.model.units[u].layout.entries()[piece.entry];
      const bool counted =
          (equals == nullptr || equals->rank() == 0) && entry.placement.is_first_replica();
      const at::Tensor value =
          slice_of(parts_.gradients.owned(u, piece.segment), piece.part, piece.segment_begin);
      const std::string here = parts_.model.units[u].blocks[piece.entry] + "." + entry.name;
      const auto owner = parts_.model.owner_elsewhere.find(here);
      const bool tied = owner != parts_.model.owner_elsewhere.end();
      visitor({tied ? owner->second : here, piece.slice, value, counted});
    }
  }
}

// Data and tensor ranks have the same parameters in the same order.
NamedTensors ParameterVisits::squared_norms() const {
  const at::NoGradGuard no_grad;
  const ForTensor of("norms of parameters");
  NamedTensors norms;
  std::map<std::string, size_t> places;
  for (const ParameterUnit& unit : parts_.model.units) {
    if (unit.frozen) continue;
    for (size_t e = 0; e < unit.blocks.size(); ++e) {
      const std::string name = unit.blocks[e] + "." + unit.layout.entries()[e].name;
      if (parts_.model.owner_elsewhere.contains(name)) continue;
      places[name] = norms.size();
      norms.emplace_back(name, at::Tensor());
    }
  }
  at::Tensor sums = at::zeros({static_cast<int64_t>(norms.size())}, values_on(parts_.ranks));
  owned_gradients([&](const GradientPiece& piece) {
    const auto place = places.find(piece.name);
    if (!piece.counted || place == places.end()) return;
    const std::array values{piece.value};
    sums[static_cast<int64_t>(place->second)].add_(ops::square_sum(values).squeeze());
  });
  parts_.ranks.data.all_reduce(sums).wait();
  if (parts_.ranks.tensor() != nullptr) parts_.ranks.tensor()->all_reduce(sums).wait();
  for (size_t i = 0; i < norms.size(); ++i) norms[i].second = sums[static_cast<int64_t>(i)];
  return norms;
}

}  // namespace tessera
