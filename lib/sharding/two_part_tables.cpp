// SPDX-License-Identifier: MIT
#include "lib/sharding/two_part_tables.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "lib/comm/operation_scope.h"
#include "lib/core/meta.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/core/error.h"
#include "tessera/ops/kernels.h"

namespace tessera {
namespace {

// The table's elements that a rank owns in a segment.
FlatRange owned_of_table(const FlatEntry& table, const FlatRange& own) {
  const int64_t begin = std::clamp<int64_t>(own.offset - table.range.offset, 0, table.range.numel);
  const int64_t end =
      std::clamp<int64_t>(own.offset + own.numel - table.range.offset, 0, table.range.numel);
  return {begin, end - begin};
}

}  // namespace

// Every rank's sum must be equal: the GPU's 16-bit kernel and the CPU add equal ids in a fixed
// order. Every rank must own whole rows.
bool sums_in_two_parts(const FlatLayout& layout, at::ScalarType dtype, bool on_gpu) {
  const FlatEntry& table = layout.entries().front();
  const int64_t columns = table.shape[1];
  bool does = columns > 0 && (!on_gpu || (c10::elementSize(dtype) == 2 && columns % 8 == 0));
  for (size_t segment = 0; segment < layout.segments().size() && does; ++segment) {
    for (int rank = 0; rank < layout.shards(); ++rank) {
      const FlatRange part = owned_of_table(table, layout.owned(segment, rank));
      does = does && part.offset % columns == 0 && part.numel % columns == 0;
    }
  }
  return does;
}

TwoPartTables::TwoPartTables(const std::vector<ParameterUnit>& units, Communicator& comm,
                             const StoreOptions& options)
    : units_(units), comm_(comm), options_(options), states_(units.size()) {
  if (options.most_rows == nullptr || comm.size() == 1) return;
  for (size_t u = 0; u < units.size(); ++u) {
    const bool in_two = units[u].ends_with_rows &&
                        sums_in_two_parts(units[u].layout, options.dtype, is_gpu(comm.device()));
    if (!in_two) continue;
    states_[u] = std::make_unique<State>();
    if (deferred_rows_ == nullptr) deferred_rows_ = std::make_shared<DeferredEmbeddingRows>();
  }
}

void TwoPartTables::open(size_t unit, const at::Tensor& flat) {
  State& state = *states_[unit];
  state.open = true;
  state.key = deferred_rows_->open(view_of(flat, units_[unit].layout.entries().front()));
}

void TwoPartTables::close(size_t unit) {
  State& state = *states_[unit];
  state.taken = deferred_rows_->close(state.key);
  state.open = false;
  state.closed = true;
}

void TwoPartTables::start() {
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    if (!contains(unit) || !states_[unit]->closed) continue;
    const int64_t most = options_.most_rows();
    if (most > 0) start(unit, most);
  }
}

void TwoPartTables::start(size_t unit, int64_t most) {
  State& state = *states_[unit];
  const FlatEntry& table = units_[unit].layout.entries().front();
  const at::TensorOptions of_rows = at::TensorOptions(options_.dtype).device(comm_.device());
  const at::TensorOptions of_ids = of_rows.dtype(at::kLong);
  const std::vector<DeferredEmbeddingRows::Rows> taken = std::exchange(state.taken, {});
  at::Tensor ids, rows;
  if (taken.size() == 1 && taken[0].ids.numel() == most) {
    ids = taken[0].ids.contiguous();
    rows = taken[0].rows.to(options_.dtype).contiguous();
  } else {
    // Padding with zeros, each for another row.
    ids = at::arange(most, of_ids).remainder_(table.shape[0]);
    rows = at::zeros({most, table.shape[1]}, of_rows);
    int64_t first = 0;
    for (const DeferredEmbeddingRows::Rows& some : taken) {
      const int64_t count = some.ids.numel();
      check(first + count <= most, ErrorCode::kInternal, "the embedding of ", units_[unit].name,
            " has gradients of more than the ", most, " ids of the micro-batch");
      ids.narrow(0, first, count).copy_(some.ids);
      rows.narrow(0, first, count).copy_(some.rows);
      first += count;
    }
  }
  state.ids = at::empty({comm_.size() * most}, of_ids);
  state.rows = at::empty({comm_.size() * most, table.shape[1]}, of_rows);
  const InPhase phase("reduce");
  const ForTensor of(units_[unit].name);
  const DataDecides the(DecidedByData::kCount);  // the rank with most rows
  Group group(comm_);
  comm_.all_gather(state.ids, ids);
  comm_.all_gather(state.rows, rows);
  state.gather = group.end();
}

void TwoPartTables::finish(const std::function<at::Tensor(size_t, size_t)>& owned,
                           const std::function<void(size_t)>& done) {
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    if (!contains(unit) || !states_[unit]->closed) continue;
    State& state = *states_[unit];
    state.gather.wait();
    const FlatLayout& layout = units_[unit].layout;
    for (size_t segment = 0; segment < layout.segments().size() && state.ids.defined(); ++segment) {
      const FlatRange own = layout.owned(segment, layout.shards() == 1 ? 0 : comm_.rank());
      add(layout.entries().front(), own, owned(unit, segment), state);
    }
    state.ids.reset();
    state.rows.reset();
    state.closed = false;
    done(unit);
  }
}

void TwoPartTables::add(const FlatEntry& table, const FlatRange& own, const at::Tensor& owned,
                        const State& state) const {
  const FlatRange part = owned_of_table(table, own);
  if (part.numel == 0) return;
  const int64_t columns = table.shape[1], first = part.offset / columns,
                count = part.numel / columns;
  const at::Tensor target =
      owned.narrow(0, table.range.offset + part.offset - own.offset, part.numel)
          .view({count, columns});
  if (count == table.shape[0]) return ops::embedding_backward(state.rows, state.ids, target);
  // Rows of other ranks' parts add zeros, each to another row.
  const at::Tensor here = state.ids - first;
  const at::Tensor away = here.lt(0).logical_or_(here.ge(count));
  const at::Tensor spread = at::arange(here.numel(), here.options()).remainder_(count);
  ops::embedding_backward(state.rows.masked_fill_(away.unsqueeze(1), 0),
                          at::where(away, spread, here), target);
}

void TwoPartTables::drop() {
  for (const auto& state : states_) {
    if (state == nullptr) continue;
    if (state->open) deferred_rows_->close(state->key);
    state->taken.clear();
    state->gather.wait();
    state->ids.reset();
    state->rows.reset();
    state->open = state->closed = false;
  }
}

}  // namespace tessera
