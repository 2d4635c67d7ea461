// SPDX-License-Identifier: MIT
#pragma once
// Tables whose gradient is summed over ranks in two parts.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lib/core/late_rows.h"
#include "tessera/comm/communicator.h"
#include "tessera/sharding/parameter_store.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// Whether a table with ParameterUnit::ends_with_rows and this layout, whose parameters, gradients
// and sums have this dtype, is one of them.
bool sums_in_two_parts(const FlatLayout& layout, at::ScalarType dtype, bool on_gpu);

// [Note: a table in two parts]
// A tied table's gradient is whole where backward ends, and half of the model's bytes would go on
// their way when nothing is left to compute. All that its first block adds are rows of the
// micro-batch's ids. So what the last block has added is summed as soon as that is done; the rows
// are taken where they would be added, gathered, and added by every rank to what it owns, in one
// order on all of them.
class TwoPartTables {
 public:
  // All outlive this.
  TwoPartTables(const std::vector<ParameterUnit>& units, Communicator& comm,
                const StoreOptions& options);
  // Whether the unit is one of them.
  bool contains(size_t unit) const { return states_[unit] != nullptr; }
  bool is_open(size_t unit) const { return contains(unit) && states_[unit]->open; }
  // Where backward hands rows; null: no unit is one of them.
  const std::shared_ptr<LateRows>& late_rows() const { return late_rows_; }
  // flat, the unit's whole gradient, is not written between the two calls.
  void open(size_t unit, const at::Tensor& flat);
  void close(size_t unit);
  // Starts the gather of what was taken. Collective.
  void start();
  // owned(unit, segment) holds the sum of the first part and gets the rows; done(unit) is called
  // when it has them.
  void finish(const std::function<at::Tensor(size_t, size_t)>& owned,
              const std::function<void(size_t)>& done);
  void drop();

 private:
  struct State {
    LateRows::Place place;  // of the table's gradient, while it is open
    std::vector<LateRows::Rows> taken = {};
    bool open = false, closed = false;
    at::Tensor ids, rows;  // of all ranks
    Work gather;
  };
  void start(size_t unit, int64_t most);
  void add(const FlatEntry& table, const FlatRange& own, const at::Tensor& owned,
           const State& state) const;

  const std::vector<ParameterUnit>& units_;
  Communicator& comm_;
  StoreOptions options_;
  std::vector<std::unique_ptr<State>> states_;  // by unit; null: the others
  std::shared_ptr<LateRows> late_rows_;
};

}  // namespace tessera
