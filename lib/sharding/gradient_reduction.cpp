#include "tessera/sharding/gradient_store.h"

namespace tessera {

PendingReduction PendingReduction::launch(
    Communicator& comm, const std::vector<std::pair<const ParameterUnit*, at::Tensor>>& full,
    const Destination& destination, at::ScalarType reduce_dtype) {
  PendingReduction pending;
  const int rank = comm.rank();
  std::vector<at::Tensor> wires;  // cast before the group: their copies run on the current stream
  for (const auto& [unit, gradient] : full) wires.push_back(gradient.to(reduce_dtype));
  Group group(comm);
  for (size_t i = 0; i < full.size(); ++i) {
    const FlatLayout& layout = full[i].first->layout;
    const at::Tensor& wire = wires[i];
    const bool same_dtype = wire.is_same(full[i].second);
    if (destination == nullptr) {
      comm.all_reduce(wire);
      if (!same_dtype) pending.casts_.emplace_back(full[i].second, wire);
      continue;
    }
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      const at::Tensor target = destination(i, segment);
      const at::Tensor output = same_dtype ? target : slice_of(wire, layout.owned(segment, rank));
      comm.reduce_scatter(output, slice_of(wire, layout.segments()[segment]));
      if (!same_dtype) pending.casts_.emplace_back(target, output);
    }
  }
  pending.work_ = group.end();
  return pending;
}

void PendingReduction::wait() {
  work_.wait();
  for (auto& [to, from] : casts_) to.copy_(from);
  casts_.clear();
}

}  // namespace tessera
