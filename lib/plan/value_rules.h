// SPDX-License-Identifier: MIT
#pragma once
// Provenance of gradients and parameters in memory, followed through a dry run.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/plan/ranges.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/comm/operation.h"

namespace tessera {

// [Note: gradients and parameters are followed]
// Matching cannot see an error that all ranks make alike. So every memory range carries its
// provenance. For a gradient: the operations that summed it over ranks since backward wrote it. For
// a parameter: which model elements it holds and when they were gathered. Copies, sums and
// collectives propagate this; an operation of a block starts afresh. Values are not needed, so
// tensors are on the meta device.
//  - Gradient: at the update, an owner's piece is summed over exactly the ranks that share it.
//  - Parameter: what a block reads holds its own elements. All but those this rank updates were
//    gathered, and waited for, since the last update.

// An operation that summed a range.
struct SumOverRanks {
  size_t communicator = 0;  // index among the ledger's
  int64_t operation = 0;
  ReduceOp reduce = ReduceOp::kSum;
};

// Provenance of a gradient; without sums: written by backward, not summed yet.
struct KnownGradient {
  bool zero = false;
  bool mixed = false;  // sums over different ranks were added
  int terms = 0;       // number of added sums over ranks: several micro-batches
  std::vector<SumOverRanks> sums;
  KnownGradient after(int64_t) const { return *this; }
  bool same(const KnownGradient& other) const;
  bool same_ranks(const KnownGradient& other) const;
};

struct KnownParameter {
  size_t flat = 0;  // see ValueRules
  int64_t element = 0, itemsize = 1;
  int epoch = 0;        // number of updates begun when it was gathered
  int64_t gather = -1;  // start index of the gather; -1: copied
  int64_t operation = -1;
  KnownParameter after(int64_t bytes) const {
    KnownParameter moved = *this;
    moved.element += bytes / itemsize;
    return moved;
  }
};

// Bytes of a contiguous tensor.
struct MemoryRange {
  c10::StorageImpl* storage = nullptr;
  int64_t begin = 0, end = 0;  // bytes
};
MemoryRange range_of(const at::Tensor& contiguous);

class ValueRules {
 public:
  // Registers a parameter of a block.
  void add_handle(const std::string& block, const std::string& parameter, const at::Tensor& handle);
  // The parameter's number, or -1.
  int handle_of(const at::Tensor& tensor) const;
  // "block.parameter"
  const std::string& name_of(int handle) const {
    return handles_[static_cast<size_t>(handle)].name;
  }
  const at::Tensor& tensor_of(int handle) const {
    return handles_[static_cast<size_t>(handle)].tensor;
  }
  // Parameters that a strategy has adopted.
  const std::vector<int>& handles_of_block(const std::string& block) const;
  int taken(const std::string& name) const;  // number of the parameter of this name, or -1

  // Effects of operators. fresh: in a block's backward, whose sums over ranks are its own.
  void copy(const at::Tensor& to, const at::Tensor& from, bool fresh);
  void add(const at::Tensor& to, const at::Tensor& from, bool fresh);
  void zero(const at::Tensor& x);
  void overwrite(const at::Tensor& x);

  // Effect of a collective. place and start: indices in the ledger.
  struct Call {
    const Operation& operation;
    size_t communicator = 0;
    int rank = 0, size = 1;
    int64_t place = 0, start = 0;
  };
  void collective(const Call& call);

  void begin_update() { ++epoch_; }
  int epoch() const { return epoch_; }

  std::vector<Ranges<KnownGradient>::Known> gradient(const at::Tensor& contiguous) const;
  std::vector<Ranges<KnownParameter>::Known> parameter(const at::Tensor& contiguous) const;
  // True if elements [element, element + count) of the flat buffer are the parameter's from `index`
  // on. other: set to the name of another parameter that owns them.
  bool is_of(size_t flat, int64_t element, int64_t count, int handle, int64_t index,
             std::string& other) const;
  bool is_taken(int handle) const { return handles_[static_cast<size_t>(handle)].taken; }

 private:
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> kept;  // keeps the address from being reused
    Ranges<KnownGradient> gradients;
    Ranges<KnownParameter> parameters;
    int flat = -1;
  };
  struct Handle {
    std::string block, name;
    at::Tensor tensor;
    bool taken = false;  // its initial values are in a flat buffer
  };
  struct OfHandle {
    int handle = 0;
    int64_t index = 0, itemsize = 4;
    OfHandle after(int64_t bytes) const { return {handle, index + bytes / itemsize, itemsize}; }
  };
  Memory& memory(const at::Tensor& x);
  const Memory* find(const c10::StorageImpl* storage) const;
  void copy_run(const at::Tensor& to, int64_t to_begin, const at::Tensor& from, int64_t from_begin,
                int64_t count, bool fresh);
  void add_run(const at::Tensor& to, int64_t to_begin, const at::Tensor& from, int64_t from_begin,
               int64_t count, bool fresh);
  void adopt(const at::Tensor& to, int64_t to_begin, int handle, int64_t index, int64_t count);
  void sum(const Call& call);
  void gather(const at::Tensor& whole, const at::Tensor& own, const Call& call);

  std::unordered_map<const c10::StorageImpl*, Memory> memory_;
  std::vector<Handle> handles_;
  std::unordered_map<const c10::TensorImpl*, int> handle_of_;
  std::map<std::string, std::vector<int>> of_block_;
  std::map<std::string, int> taken_;
  // Flat buffers of initial values, and their parameters by byte range.
  std::vector<Ranges<OfHandle>> flats_;
  int epoch_ = 0;
};

}  // namespace tessera
