// SPDX-License-Identifier: MIT
#pragma once
// What gradients and parameters in memory are made of, followed through a dry run.
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
// Matching cannot see what all ranks do wrong alike. So every range of memory carries what is known
// of it: of a gradient the operations that have summed it over ranks since backward wrote to it, of
// a parameter which elements of the model's it has and when they were gathered. Copies, sums and
// collectives pass it on. An operation of a block begins anew. The values themselves are not
// needed, so tensors have no memory.
//  - Gradient: at the update, what an owner takes is summed over exactly the ranks that share it.
//  - Parameter: what a block reads holds its own elements, and all but those that this rank updates
//    were gathered, and waited for, since the last update.

// An operation that has summed a range.
struct SumOverRanks {
  size_t communicator = 0;  // among the ledger's
  int64_t operation = 0;
  ReduceOp reduce = ReduceOp::kSum;
};

// Nothing is known of what backward wrote to and nobody has summed yet.
struct KnownGradient {
  bool zero = false;
  bool mixed = false;  // a sum over some ranks was added to one over others
  int terms = 0;       // sums over ranks that were added up: of several micro-batches
  std::vector<SumOverRanks> sums;
  KnownGradient after(int64_t) const { return *this; }
  bool same(const KnownGradient& other) const;
  bool same_ranks(const KnownGradient& other) const;
};

struct KnownParameter {
  size_t flat = 0;  // see ValueRules
  int64_t element = 0, itemsize = 1;
  int epoch = 0;        // updates begun when it was gathered
  int64_t gather = -1;  // the start, -1: copied
  int64_t operation = -1;
  KnownParameter after(int64_t bytes) const {
    KnownParameter moved = *this;
    moved.element += bytes / itemsize;
    return moved;
  }
};

// Where a tensor without holes lies.
struct MemoryRange {
  c10::StorageImpl* storage = nullptr;
  int64_t begin = 0, end = 0;  // bytes
};
MemoryRange range_of(const at::Tensor& contiguous);

class ValueRules {
 public:
  // A parameter of a block.
  void add_handle(const std::string& block, const std::string& parameter, const at::Tensor& handle);
  // -> its number, or -1.
  int handle_of(const at::Tensor& tensor) const;
  // "block.parameter"
  const std::string& name_of(int handle) const {
    return handles_[static_cast<size_t>(handle)].name;
  }
  const at::Tensor& tensor_of(int handle) const {
    return handles_[static_cast<size_t>(handle)].tensor;
  }
  // Those that a strategy has taken.
  const std::vector<int>& handles_of_block(const std::string& block) const;
  int taken(const std::string& name) const;  // -> the handle of that name, or -1

  // What operators do. fresh: in backward of a block, whose sums over ranks are its own.
  void copy(const at::Tensor& to, const at::Tensor& from, bool fresh);
  void add(const at::Tensor& to, const at::Tensor& from, bool fresh);
  void zero(const at::Tensor& x);
  void overwrite(const at::Tensor& x);

  // What a collective does; place and start: of the ledger.
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
  // Whether elements [element, element + count) of the flat are the handle's from `index` on;
  // other: the name of another parameter whose they are.
  bool is_of(size_t flat, int64_t element, int64_t count, int handle, int64_t index,
             std::string& other) const;
  bool is_taken(int handle) const { return handles_[static_cast<size_t>(handle)].taken; }

 private:
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> kept;  // no other storage gets its address
    Ranges<KnownGradient> gradients;
    Ranges<KnownParameter> parameters;
    int flat = -1;
  };
  struct Handle {
    std::string block, name;
    at::Tensor tensor;
    bool taken = false;  // its initial values are in a flat
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
  // Buffers in which initial values were put together, and whose they are, by bytes.
  std::vector<Ranges<OfHandle>> flats_;
  int epoch_ = 0;
};

}  // namespace tessera
