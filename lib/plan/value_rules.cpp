// SPDX-License-Identifier: MIT
#include "lib/plan/value_rules.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>

namespace tessera {
namespace {

constexpr int64_t kFlatItem = 4;  // bytes of an fp32 element

// Bytes of the storage from a strided tensor's first element to its last one.
std::pair<int64_t, int64_t> span_of(const at::Tensor& x) {
  if (x.numel() == 0) return {0, 0};
  int64_t last = x.storage_offset();
  for (int64_t d = 0; d < x.dim(); ++d) last += (x.size(d) - 1) * x.stride(d);
  const auto item = static_cast<int64_t>(x.itemsize());
  return {x.storage_offset() * item, (last + 1) * item};
}

// Whether for_runs() has a run for every element.
bool is_by_element(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.numel() < 2 || (a.is_contiguous() && b.is_contiguous())) {
    return false;
  }
  int64_t d = a.dim() - 1;
  while (a.size(d) == 1) --d;
  return a.stride(d) != 1 || b.stride(d) != 1;
}

// Calls fn(first byte of a, first byte of b, elements) for runs contiguous in both, in order. False
// where shapes differ.
bool for_runs(const at::Tensor& a, const at::Tensor& b,
              const std::function<void(int64_t, int64_t, int64_t)>& fn) {
  if (a.numel() != b.numel() || a.numel() == 0) return a.numel() == b.numel();
  const bool whole = a.is_contiguous() && b.is_contiguous();
  if (!whole && a.sizes() != b.sizes()) return false;
  const int64_t first_a = a.storage_offset(), first_b = b.storage_offset();
  if (whole) {
    fn(first_a * a.itemsize(), first_b * b.itemsize(), a.numel());
    return true;
  }
  int64_t run = 1;
  int64_t outer = a.dim();
  for (; outer > 0 &&
         (a.size(outer - 1) == 1 || (a.stride(outer - 1) == run && b.stride(outer - 1) == run));
       --outer) {
    run *= a.size(outer - 1);
  }
  std::vector<int64_t> index(static_cast<size_t>(outer));
  for (int64_t left = a.numel() / run; left > 0; --left) {
    int64_t at_a = first_a, at_b = first_b;
    for (int64_t d = 0; d < outer; ++d) {
      at_a += index[static_cast<size_t>(d)] * a.stride(d);
      at_b += index[static_cast<size_t>(d)] * b.stride(d);
    }
    fn(at_a * a.itemsize(), at_b * b.itemsize(), run);
    for (int64_t d = outer; d-- > 0;) {
      if (++index[static_cast<size_t>(d)] < a.size(d)) break;
      index[static_cast<size_t>(d)] = 0;
    }
  }
  return true;
}

}  // namespace

bool KnownGradient::same(const KnownGradient& other) const {
  return terms == other.terms && same_ranks(other);
}

bool KnownGradient::same_ranks(const KnownGradient& other) const {
  return mixed == other.mixed &&
         std::ranges::equal(sums, other.sums, {}, &SumOverRanks::communicator,
                            &SumOverRanks::communicator);
}

MemoryRange range_of(const at::Tensor& x) {
  const int64_t begin = x.storage_offset() * static_cast<int64_t>(x.itemsize());
  return {x.storage().unsafeGetStorageImpl(), begin,
          begin + x.numel() * static_cast<int64_t>(x.itemsize())};
}

ValueRules::Memory& ValueRules::memory(const at::Tensor& x) {
  const c10::StorageImpl* storage = x.storage().unsafeGetStorageImpl();
  const auto found = memory_.find(storage);
  if (found != memory_.end()) return found->second;
  return memory_.emplace(storage, Memory{x.storage().getWeakStorageImpl(), {}, {}, -1})
      .first->second;
}

const ValueRules::Memory* ValueRules::find(const c10::StorageImpl* storage) const {
  const auto found = memory_.find(storage);
  return found == memory_.end() ? nullptr : &found->second;
}

void ValueRules::add_handle(const std::string& block, const std::string& parameter,
                            const at::Tensor& handle) {
  const int number = static_cast<int>(handles_.size());
  handles_.push_back({block, block + "." + parameter, handle});
  handle_of_[handle.unsafeGetTensorImpl()] = number;
}

int ValueRules::handle_of(const at::Tensor& tensor) const {
  const auto found = handle_of_.find(tensor.unsafeGetTensorImpl());
  return found == handle_of_.end() ? -1 : found->second;
}

const std::vector<int>& ValueRules::handles_of_block(const std::string& block) const {
  static const std::vector<int> none;
  const auto found = of_block_.find(block);
  return found == of_block_.end() ? none : found->second;
}

int ValueRules::taken(const std::string& name) const {
  const auto found = taken_.find(name);
  return found == taken_.end() ? -1 : found->second;
}

void ValueRules::adopt(const at::Tensor& to, int64_t to_begin, int handle, int64_t index,
                       int64_t count) {
  Memory& memory = this->memory(to);
  if (memory.flat < 0) {
    memory.flat = static_cast<int>(flats_.size());
    flats_.emplace_back();
    // Includes the padding.
    memory.parameters.set(0, static_cast<int64_t>(to.storage().nbytes()),
                          {.flat = static_cast<size_t>(memory.flat), .itemsize = kFlatItem});
  }
  Handle& of = handles_[static_cast<size_t>(handle)];
  of.taken = true;
  of_block_[of.block].push_back(handle);
  taken_[of.name] = handle;
  const int64_t end = to_begin + count * kFlatItem;
  flats_[static_cast<size_t>(memory.flat)].set(to_begin, end, {handle, index, kFlatItem});
}

void ValueRules::copy_run(const at::Tensor& to, int64_t to_begin, const at::Tensor& from,
                          int64_t from_begin, int64_t count, bool fresh) {
  const auto to_item = static_cast<int64_t>(to.itemsize());
  const auto from_item = static_cast<int64_t>(from.itemsize());
  const Memory* source = find(from.storage().unsafeGetStorageImpl());
  const int64_t from_end = from_begin + count * from_item;
  std::vector<Ranges<KnownGradient>::Known> gradients;
  std::vector<Ranges<KnownParameter>::Known> parameters;
  if (source != nullptr) {
    if (!fresh) gradients = source->gradients.in(from_begin, from_end);
    parameters = source->parameters.in(from_begin, from_end);
  }
  if (gradients.empty() && parameters.empty() &&
      find(to.storage().unsafeGetStorageImpl()) == nullptr) {
    return;
  }
  Memory& target = memory(to);
  const auto moved = [&](int64_t at) { return to_begin + (at - from_begin) / from_item * to_item; };
  target.gradients.clear(to_begin, to_begin + count * to_item);
  for (auto& each : gradients) {
    target.gradients.set(moved(each.begin), moved(each.end), std::move(each.what));
  }
  for (auto& each : parameters) {
    each.what.itemsize = to_item;
    target.parameters.set(moved(each.begin), moved(each.end), each.what);
  }
}

void ValueRules::copy(const at::Tensor& to, const at::Tensor& from, bool fresh) {
  if (!to.has_storage() || !from.has_storage()) return;
  const int handle = epoch_ == 0 ? handle_of(from) : -1;
  const bool initial = handle >= 0 && !is_taken(handle) && to.scalar_type() == at::kFloat &&
                       from.scalar_type() == at::kFloat && to.is_contiguous();
  if (initial) {
    adopt(to, range_of(to).begin, handle, 0, to.numel());
    return;
  }
  const Memory* const source = find(from.storage().unsafeGetStorageImpl());
  if (source == nullptr && find(to.storage().unsafeGetStorageImpl()) == nullptr) return;
  // A turned copy of a parameter, as of its codes, is read by its block alone. Its elements are as
  // many runs, too many to follow.
  const auto [begin, end] = span_of(from);
  const bool has_gradients =
      source != nullptr && !fresh && !source->gradients.in(begin, end).empty();
  if (to.is_contiguous() && !has_gradients && is_by_element(to, from)) return overwrite(to);
  const bool done = for_runs(to, from, [&](int64_t a, int64_t b, int64_t count) {
    copy_run(to, a, from, b, count, fresh);
  });
  if (!done) overwrite(to);
}

void ValueRules::add_run(const at::Tensor& to, int64_t to_begin, const at::Tensor& from,
                         int64_t from_begin, int64_t count, bool fresh) {
  const auto to_item = static_cast<int64_t>(to.itemsize());
  const auto from_item = static_cast<int64_t>(from.itemsize());
  const Memory* source = find(from.storage().unsafeGetStorageImpl());
  const int64_t to_end = to_begin + count * to_item;
  // Boundaries of the known ranges of both.
  std::vector<int64_t> cuts{to_begin, to_end};
  const auto known_to = memory(to).gradients.in(to_begin, to_end);
  std::vector<Ranges<KnownGradient>::Known> known_from;
  if (source != nullptr && !fresh) {
    known_from = source->gradients.in(from_begin, from_begin + count * from_item);
  }
  if (known_to.empty() && known_from.empty()) return;
  for (const auto& each : known_to) cuts.insert(cuts.end(), {each.begin, each.end});
  for (auto& each : known_from) {
    each.begin = to_begin + (each.begin - from_begin) / from_item * to_item;
    each.end = to_begin + (each.end - from_begin) / from_item * to_item;
    cuts.insert(cuts.end(), {each.begin, each.end});
  }
  std::ranges::sort(cuts);
  const auto at = [](const auto& known, int64_t place) {
    const auto found = std::ranges::find_if(
        known, [&](const auto& each) { return each.begin <= place && place < each.end; });
    return found == known.end() ? KnownGradient{} : found->what;
  };
  Ranges<KnownGradient>& gradients = memory(to).gradients;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) continue;
    const KnownGradient a = at(known_to, cuts[i]), b = at(known_from, cuts[i]);
    if (b.zero) continue;
    KnownGradient sum = a.zero ? b : a;
    if (!a.zero) {
      sum.mixed = sum.mixed || !a.same_ranks(b);
      sum.terms += b.terms;
    }
    if (sum.mixed || !sum.sums.empty()) {
      gradients.set(cuts[i], cuts[i + 1], sum);
    } else {
      gradients.clear(cuts[i], cuts[i + 1]);
    }
  }
}

void ValueRules::add(const at::Tensor& to, const at::Tensor& from, bool fresh) {
  if (!to.has_storage() || !from.has_storage()) return;
  for_runs(to, from,
           [&](int64_t a, int64_t b, int64_t count) { add_run(to, a, from, b, count, fresh); });
}

void ValueRules::zero(const at::Tensor& x) {
  if (!x.has_storage() || x.numel() == 0 || !x.is_contiguous()) return;
  const auto [storage, begin, end] = range_of(x);
  memory(x).gradients.set(begin, end, {.zero = true});
}

void ValueRules::overwrite(const at::Tensor& x) {
  if (!x.has_storage() || find(x.storage().unsafeGetStorageImpl()) == nullptr) return;
  if (!x.is_contiguous()) return;
  const auto [storage, begin, end] = range_of(x);
  memory(x).gradients.clear(begin, end);
}

// Sum of all_reduce or reduce_scatter, which uses only this rank's part of the input.
void ValueRules::sum(const Call& call) {
  const Operation& o = call.operation;
  const bool scatters = o.kind == OperationKind::kReduceScatter;
  const MemoryRange target = range_of(o.output);
  MemoryRange source = range_of(scatters ? o.input : o.output);
  if (scatters) source.begin += call.rank * (target.end - target.begin);
  source.end = source.begin + target.end - target.begin;
  const at::Tensor& from = scatters ? o.input : o.output;
  const auto known = memory(from).gradients.in(source.begin, source.end);
  if (scatters) overwrite(o.input);
  Ranges<KnownGradient>& gradients = memory(o.output).gradients;
  int64_t next = target.begin;
  const auto take = [&](int64_t end, KnownGradient what) {
    what.zero = false;
    what.terms = std::max(1, what.terms);
    what.sums.push_back({call.communicator, call.place, o.reduce});
    gradients.set(next, end, std::move(what));
    next = end;
  };
  const int64_t moved = target.begin - source.begin;
  for (const auto& each : known) {
    if (each.begin + moved > next) take(each.begin + moved, {});
    take(each.end + moved, each.what);
  }
  if (next < target.end) take(target.end, {});
}

void ValueRules::gather(const at::Tensor& whole, const at::Tensor& own, const Call& call) {
  const MemoryRange source = range_of(own), target = range_of(whole);
  const auto gradients = memory(own).gradients.in(source.begin, source.end);
  const auto parameters = memory(own).parameters.in(source.begin, source.end);
  const int64_t bytes = source.end - source.begin;
  Memory& memory = this->memory(whole);
  memory.gradients.clear(target.begin, target.end);
  for (int rank = 0; rank < call.size; ++rank) {
    const int64_t moved = target.begin + rank * bytes - source.begin;
    for (const auto& each : gradients) {
      memory.gradients.set(each.begin + moved, each.end + moved, each.what);
    }
    for (auto each : parameters) {
      each.what.element += (rank - call.rank) * own.numel();
      each.what.epoch = epoch_;
      each.what.gather = call.start;
      each.what.operation = call.place;
      memory.parameters.set(each.begin + moved, each.end + moved, each.what);
    }
  }
}

void ValueRules::collective(const Call& call) {
  const Operation& o = call.operation;
  if (o.kind == OperationKind::kBarrier || o.tensor().numel() == 0) return;
  switch (o.kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kReduceScatter:
      return sum(call);
    case OperationKind::kAllGather:
      return gather(o.output, o.input, call);
    case OperationKind::kAllToAll:
    case OperationKind::kRecv:
      return overwrite(o.output);
    default:
      return;
  }
}

std::vector<Ranges<KnownGradient>::Known> ValueRules::gradient(const at::Tensor& x) const {
  const auto [storage, begin, end] = range_of(x);
  const Memory* known = find(storage);
  if (known == nullptr) return {};
  return known->gradients.in(begin, end);
}

std::vector<Ranges<KnownParameter>::Known> ValueRules::parameter(const at::Tensor& x) const {
  const auto [storage, begin, end] = range_of(x);
  const Memory* known = find(storage);
  if (known == nullptr) return {};
  return known->parameters.in(begin, end);
}

bool ValueRules::is_of(size_t flat, int64_t element, int64_t count, int handle, int64_t index,
                       std::string& other) const {
  int64_t next = element * kFlatItem;
  for (const auto& each : flats_[flat].in(next, (element + count) * kFlatItem)) {
    if (each.begin != next) return false;
    if (each.what.handle != handle) {
      other = name_of(each.what.handle);
      return false;
    }
    if (each.what.index != index + (each.begin / kFlatItem - element)) return false;
    next = each.end;
  }
  return next == (element + count) * kFlatItem;
}

}  // namespace tessera
