// SPDX-License-Identifier: MIT
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "lib/comm/operation_scope.h"
#include "lib/core/host_memory.h"
#include "lib/sharding/decoded_parameters.h"
#include "lib/sharding/gathered_codes.h"
#include "lib/sharding/messages.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"
#include "tessera/sharding/parameter_store.h"

namespace tessera {
namespace {

// Elements of the compute dtype that the unit's gathered values take. Codes, of a byte each, keep
// the alignment of what follows them.
int64_t slot_numel(const ParameterUnit& unit, at::ScalarType compute) {
  const int64_t numel = unit.layout.resident_begin();
  if (!unit.coded()) return numel;
  const auto width = static_cast<int64_t>(c10::elementSize(compute));
  const int64_t step = width * FlatLayout::kAlignment;
  return (numel + step - 1) / step * FlatLayout::kAlignment;
}

}  // namespace

// [Note: order of gathers and compute]
// A gather starts after the work already on the current stream, which waits for it in acquire().
// prefetch(i + 1) is called after acquire(i) and before block i's kernels are issued, so it
// overlaps block i. The slot it overwrites was last read by block i - 1 (depth 2), whose kernels
// come earlier on the stream. Blocks of one message are gathered together into one slot and count
// as one block here. Autograd's saved tensors point into the slots: they are read only between
// acquire() and release() of backward, when the same unit is in the same slot again.
// Units that gather codes keep room for values, which evaluations gather: codes take its beginning.

GatheredParameters::GatheredParameters(const std::vector<ParameterUnit>& units, Communicator& comm,
                                       StoreOptions options)
    : units_(units), comm_(comm), options_(options) {
  if (options_.host_shards) from_host_ = side_stream(comm_.device());
}

// Gathers started by publish() may be pending, into buffers that this destroys.
GatheredParameters::~GatheredParameters() {
  for (State& state : states_) state.fetched.synchronize();  // it reads host memory
  if (std::uncaught_exceptions() > 0) return;
  try {
    for (Work& gather : gathers_) gather.wait();
  } catch (const std::exception&) {  // the failed job reports it
  }
}

void GatheredParameters::adopt(size_t unit, const at::Tensor& full_fp32) {
  const FlatLayout& layout = units_[unit].layout;
  states_.resize(unit + 1);
  State& state = states_[unit];
  const int64_t begin = layout.resident_begin();
  const at::ScalarType dtype = stored_dtype(units_[unit], options_.dtype);
  const auto tensor_options = full_fp32.options().dtype(dtype);
  const at::Tensor values =
      units_[unit].coded() ? stored_values(units_[unit], full_fp32, options_.dtype) : full_fp32;
  if (options_.host_shards) {
    HostThreads caller(1, cores_near(comm_.device()));
    state.shard = host_zeros_beside(comm_.device(), begin / layout.shards(), dtype,
                                    options_.pin_memory, caller);
  } else {
    state.shard = at::empty({begin / layout.shards()}, tensor_options);
  }
  state.resident = at::empty({layout.numel() - begin}, tensor_options);
  state.resident.copy_(values.narrow(0, begin, layout.numel() - begin));
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    if (layout.segments()[segment].offset >= begin) break;
    owned(unit, segment)
        .copy_(slice_of(values, layout.owned(segment, units_[unit].ranks(comm_).rank())));
  }
}

at::Tensor GatheredParameters::gathered(size_t unit, bool as_codes) const {
  const at::Tensor& buffer = slots_->buffer(unit);
  if (!as_codes) return buffer;
  return buffer.view(at::kFloat8_e4m3fn).narrow(0, 0, units_[unit].layout.resident_begin());
}

void GatheredParameters::finalize() {
  messages_ = std::make_unique<const Messages>(units_);
  gathers_.resize(messages_->units.size());
  std::vector<SlotUser> users;
  for (const ParameterUnit& unit : units_) {
    users.push_back({.numel = slot_numel(unit, options_.dtype),
                     .gather_group = unit.gather_group,
                     .exclusive = options_.keep_gathered || unit.apart});
  }
  slots_ = std::make_unique<BufferSlots>(
      users, options_.prefetch_blocks + 1,
      at::TensorOptions().dtype(options_.dtype).device(comm_.device()));
  in_slot_.resize(slots_->slot_count());
  gathered_codes_ = std::make_unique<GatheredCodes>(units_, comm_);
  std::vector<size_t> first_group(slots_->slot_count(), units_.size());
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    size_t& gather_group = first_group[slots_->slot_of(unit)];
    gather_group = std::min(gather_group, units_[unit].gather_group);
  }
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    states_[unit].begins = units_[unit].layout.resident_begin() > 0 &&
                           units_[unit].gather_group == first_group[slots_->slot_of(unit)];
    list_gathers(unit);
  }
  gathered_codes_->finalize();
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const FlatLayout& layout = units_[unit].layout;
    const int64_t begin = layout.resident_begin();
    if (units_[unit].coded()) continue;
    bind_parameters(units_[unit], slots_->buffer(unit), 0, begin);
    bind_parameters(units_[unit], states_[unit].resident, begin, layout.numel());
  }
  decoded_ = std::make_unique<DecodedParameters>(units_, options_.dtype, comm_.device());
}

// Nothing moves after finalize(): views are made once.
void GatheredParameters::list_gathers(size_t unit) {
  const FlatLayout& layout = units_[unit].layout;
  State& state = states_[unit];
  const int64_t begin = layout.resident_begin();
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    const FlatRange& range = layout.segments()[segment];
    if (range.offset >= begin) {
      const at::Tensor whole = slice_of(state.resident, range, begin);
      state.resident_gathers.push_back({as_sent(whole), as_sent(owned(unit, segment))});
      continue;
    }
    const bool coded = units_[unit].coded();
    const at::Tensor own =
        options_.host_shards ? own_place(unit, segment, coded) : owned(unit, segment);
    state.gathers.push_back({as_sent(slice_of(gathered(unit, coded), range)), as_sent(own)});
    if (!units_[unit].gathers_codes()) continue;
    const at::Tensor own_codes = own_place(unit, segment, /*as_codes=*/true);
    gathered_codes_->add(unit, segment, own, own_codes);
    state.code_gathers.push_back(
        {as_sent(slice_of(gathered(unit, /*as_codes=*/true), range)), as_sent(own_codes)});
  }
}

// Whether acquire() need not gather.
bool GatheredParameters::is_present(size_t unit, bool decodes) const {
  const State& state = states_[unit];
  const bool other_form = units_[unit].gathers_codes() && state.as_codes == decodes;
  return state.residency != Residency::kSharded && !other_form;
}

// Frees the unit's slot from units of other gather_groups.
void GatheredParameters::make_room(size_t unit) {
  std::vector<size_t>& present = in_slot_[slots_->slot_of(unit)];
  for (size_t other : present) {
    if (units_[other].gather_group == units_[unit].gather_group) continue;
    State& previous = states_[other];
    check(previous.acquired == 0, ErrorCode::kInternal, "parameters of block ", units_[unit].name,
          " were asked for while ", units_[other].name, " still uses their buffer");
    wait_for_gather(messages_->of_unit[other]);  // an unused prefetch
    previous.residency = Residency::kSharded;
  }
  std::erase_if(present, [&](size_t other) {
    return other == unit || units_[other].gather_group != units_[unit].gather_group;
  });
  present.push_back(unit);
}

// Gathers those units of the message that are not present.
void GatheredParameters::gather(size_t message, bool decodes) {
  wait_for_gather(message);  // for others of its units
  std::vector<size_t> units;
  for (const size_t unit : messages_->units[message]) {
    if (is_present(unit, decodes)) continue;
    State& state = states_[unit];
    check(!units_[unit].gathers_codes() || state.acquired == 0, ErrorCode::kInternal,
          "parameters of block ", units_[unit].name, " are in use as ",
          state.as_codes ? "codes" : "values", ", and are asked for in the other form");
    state.as_codes = units_[unit].gathers_codes() && !decodes;
    make_room(unit);
    units.push_back(unit);
  }
  for (const size_t unit : units) {
    if (states_[unit].as_codes) gathered_codes_->form(unit);
  }
  {
    std::optional<StreamScope> scope;
    for (const size_t unit : units) {
      if (!options_.host_shards) continue;
      const c10::Stream stream = fetch(unit);
      if (!scope) scope.emplace(stream);
    }
    const ParameterUnit& first = units_[messages_->units[message].front()];
    const ForTensor of(first.name);
    Communicator& ranks = first.ranks(comm_);  // a message has one
    Group group(ranks);
    for (const size_t unit : units) {
      State& state = states_[unit];
      for (const auto& [whole, own] : state.as_codes ? state.code_gathers : state.gathers) {
        ranks.all_gather(whole, own);
      }
      state.residency = Residency::kGathering;
    }
    gathers_[message] = group.end();
  }
  for (const size_t unit : units) follow_codes(unit);
  if (!options_.overlap) wait_for_gather(message);
}

// Dry runs follow values to the handles, the last ones first: codes lie before values.
void GatheredParameters::follow_codes(size_t unit) const {
  const at::Tensor& buffer = slots_->buffer(unit);
  if (!states_[unit].as_codes || !buffer.is_meta()) return;
  const at::NoGradGuard no_grad;
  const auto& entries = units_[unit].layout.entries();
  for (size_t e = entries.size(); e-- > 0;) view_of(buffer, entries[e]).copy_(codes(unit, e));
}

// Copies host shards into the slot on a separate stream, from which the in-place gather then
// starts. Like any gather it follows the compute that last read the slot.
c10::Stream GatheredParameters::fetch(size_t unit) {
  const FlatLayout& layout = units_[unit].layout;
  const c10::Stream stream = from_host_.value();
  Marker slot_free;
  slot_free.record(comm_.device());
  slot_free.block(stream);
  const StreamScope scope(stream);
  const CopyScope copies(stream);
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    if (layout.segments()[segment].offset >= layout.resident_begin()) break;
    const at::Tensor place = own_place(unit, segment, units_[unit].coded());
    place.copy_(owned(unit, segment), /*non_blocking=*/true);
  }
  states_[unit].fetched.record(stream);
  return stream;
}

at::Tensor GatheredParameters::own_place(size_t unit, size_t segment, bool as_codes) const {
  return slice_of(gathered(unit, as_codes),
                  units_[unit].layout.owned(segment, units_[unit].ranks(comm_).rank()));
}

void GatheredParameters::wait_for_gather(size_t message) {
  if (options_.host_shards) {
    for (const size_t unit : messages_->units[message]) {
      states_[unit].fetched.block(comm_.device());
    }
  }
  gathers_[message].wait();
}

void GatheredParameters::acquire(size_t unit, bool decodes) {
  State& state = states_[unit];
  gather_residents();
  const size_t message = messages_->of_unit[unit];
  if (!is_present(unit, decodes)) gather(message, decodes);
  wait_for_gather(message);
  state.residency = Residency::kUnsharded;
  ++state.acquired;
  if (!units_[unit].coded()) return;
  decoded_->acquire(unit, gathered(unit, /*as_codes=*/true), state.resident, decodes);
}

at::Tensor GatheredParameters::codes(size_t unit, size_t entry) const {
  const FlatEntry& of = units_[unit].layout.entries()[entry];
  const int64_t begin = units_[unit].layout.resident_begin();
  return of.range.offset < begin ? view_of(gathered(unit, /*as_codes=*/true), of)
                                 : view_of(states_[unit].resident, of, begin);
}

at::Tensor GatheredParameters::scale(size_t unit, size_t entry) const {
  if (units_[unit].gathers_codes()) return gathered_codes_->scale(unit, entry);
  return units_[unit].scales[static_cast<int64_t>(entry)];
}

void GatheredParameters::prefetch(size_t unit, bool decodes) {
  if (!options_.overlap || is_present(unit, decodes)) return;
  for (size_t other : in_slot_[slots_->slot_of(unit)]) {
    if (units_[other].gather_group != units_[unit].gather_group && states_[other].acquired > 0)
      return;
  }
  gather(messages_->of_unit[unit], decodes);
}

void GatheredParameters::release(size_t unit) {
  State& state = states_[unit];
  check(state.acquired > 0, ErrorCode::kInternal, "parameters of block ", units_[unit].name,
        " were released without being acquired");
  --state.acquired;
  if (units_[unit].coded()) decoded_->release(unit);
#ifndef NDEBUG
  if (state.acquired == 0) {
    at::Tensor(slots_->buffer(unit)).fill_(std::nan(""));
    state.residency = Residency::kSharded;
  }
#endif
}

void GatheredParameters::drop_uses() {
  for (size_t message = 0; message < gathers_.size(); ++message) wait_for_gather(message);
  for (State& state : states_) {
    state.residency = Residency::kSharded;
    state.acquired = 0;
  }
  for (std::vector<size_t>& present : in_slot_) present.clear();
  decoded_->drop();
  delayed_.clear();
}

at::Tensor GatheredParameters::owned(size_t unit, size_t segment) const {
  const FlatLayout& layout = units_[unit].layout;
  const FlatRange owned = layout.owned(segment, units_[unit].ranks(comm_).rank());
  if (owned.offset < layout.resident_begin()) {
    return slice_of(states_[unit].shard, layout.compact(segment));
  }
  return slice_of(states_[unit].resident, owned, layout.resident_begin());
}

// Gathers the units that a step needs first while later units are updated.
void GatheredParameters::publish(size_t unit) {
  State& state = states_[unit];
  state.residency = Residency::kSharded;
  state.published = true;
  if (units_[unit].coded()) decoded_->drop();
  if (units_[unit].gathers_codes()) gathered_codes_->publish(unit);
  if (!state.resident_gathers.empty()) published_.push_back(unit);
  if (is_published(messages_->of_unit[unit])) delayed_.push_back(messages_->of_unit[unit]);
  begin_delayed();
}

// Scales need all updates. The next pass is taken for one in training, as an update is rarely
// followed by another.
void GatheredParameters::begin_delayed() {
  const auto has_codes = [&](size_t unit) { return units_[unit].gathers_codes(); };
  std::erase_if(delayed_, [&](size_t message) {
    const std::vector<size_t>& units = messages_->units[message];
    if (std::ranges::any_of(units, has_codes) && !gathered_codes_->is_ready()) return false;
    for (const size_t unit : units) {
      if (states_[unit].begins && !options_.host_shards) prefetch(unit, /*decodes=*/false);
    }
    return true;
  });
}

// Whether all trained units of the message are published; if so, starts the next round.
bool GatheredParameters::is_published(size_t message) {
  const std::vector<size_t>& units = messages_->units[message];
  for (const size_t unit : units) {
    if (!units_[unit].frozen && !states_[unit].published) return false;
  }
  for (const size_t unit : units) states_[unit].published = false;
  return true;
}

// Gathers all units' resident segments together: each has few elements.
void GatheredParameters::gather_residents() {
  while (!published_.empty()) {
    const ForTensor of(units_[published_.front()].name);  // the first of them
    Communicator& ranks = units_[published_.front()].ranks(comm_);
    const auto others = std::ranges::stable_partition(
        published_, [&](size_t unit) { return &units_[unit].ranks(comm_) == &ranks; });
    Group group(ranks);
    for (auto unit = published_.begin(); unit != others.begin(); ++unit) {
      for (const auto& [whole, own] : states_[*unit].resident_gathers) ranks.all_gather(whole, own);
    }
    group.end().wait();
    published_.erase(published_.begin(), others.begin());
  }
}

bool GatheredParameters::owned_on_host(size_t unit, size_t segment) const {
  const FlatLayout& layout = units_[unit].layout;
  return options_.host_shards && layout.segments()[segment].offset < layout.resident_begin();
}

int64_t GatheredParameters::persistent_bytes() const {
  int64_t sum = 0;
  for (const auto& state : states_) {
    sum += static_cast<int64_t>(state.resident.nbytes());
    if (!options_.host_shards) sum += static_cast<int64_t>(state.shard.nbytes());
  }
  return sum + (decoded_ == nullptr ? 0 : decoded_->scale_bytes() + gathered_codes_->bytes());
}

int64_t GatheredParameters::buffer_bytes() const {
  return slots_ == nullptr ? 0 : slots_->bytes() + decoded_->buffer_bytes();
}

int64_t GatheredParameters::host_bytes() const {
  int64_t sum = 0;
  if (!options_.host_shards) return sum;
  for (const auto& state : states_) sum += static_cast<int64_t>(state.shard.nbytes());
  return sum;
}

}  // namespace tessera
