// SPDX-License-Identifier: MIT
#pragma once
// Embedding tables whose gradient is reduced in two parts.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lib/core/deferred_embedding_rows.h"
#include "tessera/comm/communicator.h"
#include "tessera/sharding/parameter_store.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// Whether a table with ParameterUnit::ends_with_rows, this layout and this dtype of parameters,
// gradients and reductions is reduced in two parts.
bool sums_in_two_parts(const FlatLayout& layout, at::ScalarType dtype, bool on_gpu);

// [Note: a table in two parts]
// A tied table's gradient is complete only when backward ends, so up to half of the model's bytes
// would be reduced with nothing left to overlap. Its first use adds only rows of the micro-batch's
// ids. So the last block's part is reduced at once. The rows are captured instead of added,
// gathered, and added by every rank to its shard, in one order on all ranks.
class TwoPartTables {
 public:
  // All arguments outlive the object.
  TwoPartTables(const std::vector<ParameterUnit>& units, Communicator& comm,
                const StoreOptions& options);
  // Whether the unit is reduced in two parts.
  bool contains(size_t unit) const { return states_[unit] != nullptr; }
  bool is_open(size_t unit) const { return contains(unit) && states_[unit]->open; }
  // Receiver of rows in backward; null: no unit needs it.
  const std::shared_ptr<DeferredEmbeddingRows>& deferred_rows() const { return deferred_rows_; }
  // flat, the unit's full gradient, is not written between open() and close().
  void open(size_t unit, const at::Tensor& flat);
  void close(size_t unit);
  // Starts the gather of the captured rows. Collective.
  void start();
  // Adds the rows to owned(unit, segment), which holds the first part's sum, then calls done(unit).
  void finish(const std::function<at::Tensor(size_t, size_t)>& owned,
              const std::function<void(size_t)>& done);
  void drop();

 private:
  struct State {
    DeferredEmbeddingRows::GradientKey key;  // of the table's gradient, while it is open
    std::vector<DeferredEmbeddingRows::Rows> taken = {};
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
  std::vector<std::unique_ptr<State>> states_;  // by unit; null: not in two parts
  std::shared_ptr<DeferredEmbeddingRows> deferred_rows_;
};

}  // namespace tessera
