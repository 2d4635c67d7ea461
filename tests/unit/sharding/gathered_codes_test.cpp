// SPDX-License-Identifier: MIT
// Gathers of trained matrices as 8-bit codes.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lib/ops/fp8.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/sharding/parameter_store.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using test::require;
using test::require_bit_equal;
using test::run_ranks;

namespace {

constexpr at::ScalarType kCompute = at::kBFloat16;

struct Weight {
  std::string name;
  std::vector<int64_t> shape;
};

// Values of a matrix of which one half is 2^14 times smaller: below the normal range of codes with
// the scale of the whole. It is the first half, or with `mirrored` the second one.
at::Tensor uneven(at::IntArrayRef shape, int64_t shift, bool mirrored) {
  const int64_t numel = c10::multiply_integers(shape);
  at::Tensor values = (at::arange(numel, at::kDouble) * 0.7 + shift).sin().to(at::kFloat);
  const int64_t half = numel / 2;
  values.narrow(0, mirrored ? half : 0, half).mul_(0x1p-14);
  return mirrored ? (values * 40).view(shape) : values.view(shape);
}

// Units of blocks with a norm and products of these weights; a rank's handles of them.
struct Units {
  Units(int ranks, ShardGranularity granularity) {
    const std::vector<std::vector<Weight>> products = {{{"q", {24, 40}}, {"k", {16, 40}}},
                                                       {{"o", {40, 21}}}};
    size_t product = 0;
    for (size_t group = 0; group < 3; ++group) {
      add({{{"norm", {65}}}}, group, ranks, granularity, {});
      std::vector<size_t> numbers;
      std::vector<Weight> weights;
      for (const std::vector<Weight>& together : products) {
        for (const Weight& weight : together) {
          weights.push_back(weight);
          numbers.push_back(product);
        }
        ++product;
      }
      add(weights, group, ranks, granularity, numbers);
    }
  }

  void add(const std::vector<Weight>& weights, size_t group, int ranks,
           ShardGranularity granularity, const std::vector<size_t>& products) {
    std::vector<Parameter> parameters;
    for (const Weight& weight : weights) {
      parameters.push_back({weight.name, at::zeros(weight.shape)});
      parameters.back().tensor.set_requires_grad(true);
    }
    ParameterUnit unit;
    unit.name = "block " + std::to_string(group);
    unit.layout = FlatLayout(parameters, ranks, granularity);
    unit.gather_group = group;
    for (const FlatEntry& entry : unit.layout.entries()) {
      unit.blocks.push_back(unit.name);
      unit.handles.push_back({parameters[entry.source].tensor});
      unit.blank.push_back(false);
      if (!products.empty()) unit.products.push_back(products[entry.source]);
    }
    all.push_back(std::move(unit));
  }

  // The unit's values in a version of the model.
  at::Tensor full(size_t unit, int version) const {
    const FlatLayout& layout = all[unit].layout;
    at::Tensor flat = at::zeros({layout.numel()});
    int64_t shift = static_cast<int64_t>(unit) + 100 * version;
    for (const FlatEntry& entry : layout.entries()) {
      view_of(flat, entry).copy_(uneven(entry.shape, shift++, version % 2 == 1));
    }
    return flat;
  }

  std::vector<ParameterUnit> all;
};

// Codes of the unit's products as a rank with whole matrices forms them.
void require_codes(const ParameterStore& store, const Units& units, size_t unit, int version) {
  const at::Tensor flat = units.full(unit, version).to(kCompute);
  const ParameterUnit& of = units.all[unit];
  const auto& entries = of.layout.entries();
  for (size_t e = 0; e < entries.size(); ++e) {
    std::vector<at::Tensor> together;
    int64_t begin = 0;
    for (size_t other = 0; other < entries.size(); ++other) {
      if (of.products[other] != of.products[e]) continue;
      if (other < e) begin += entries[other].shape[0];
      together.push_back(view_of(flat, entries[other]));
    }
    const auto expected = ops::fp8_matrix(at::cat(together), at::kFloat8_e4m3fn, Fp8::kTensorwise);
    const std::string name = of.name + "." + entries[e].name;
    require_bit_equal(store.scale(unit, e).view({1, 1}), expected.scale, name + ", scale");
    require_bit_equal(store.codes(unit, e).view(at::kByte),
                      expected.codes.narrow(0, begin, entries[e].shape[0]).view(at::kByte),
                      name + ", codes");
  }
}

void require_values(const Units& units, size_t unit, int version) {
  const at::Tensor flat = units.full(unit, version).to(kCompute);
  const auto& entries = units.all[unit].layout.entries();
  for (size_t e = 0; e < entries.size(); ++e) {
    require_bit_equal(units.all[unit].handles[e].front().detach(), view_of(flat, entries[e]),
                      units.all[unit].name + "." + entries[e].name);
  }
}

// A pass over all blocks, and back.
void pass(ParameterStore& store, const Units& units, int version, bool decodes) {
  const auto count = units.all.size();
  for (size_t i = 0; i < 2 * count; ++i) {
    const size_t unit = i < count ? i : 2 * count - 1 - i;
    store.acquire(unit, decodes);
    if (i + 2 < count) store.prefetch(i + 2, decodes);
    if (units.all[unit].gathers_codes() && !decodes) {
      require_codes(store, units, unit, version);
    } else {
      require_values(units, unit, version);
    }
    store.release(unit);
  }
}

void update(ParameterStore& store, const Units& units, int version, int rank) {
  for (size_t unit = 0; unit < units.all.size(); ++unit) {
    const FlatLayout& layout = units.all[unit].layout;
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      store.owned(unit, segment)
          .copy_(slice_of(units.full(unit, version), layout.owned(segment, rank)));
    }
    store.publish(unit);
  }
}

void check_store(int ranks, ShardGranularity granularity, StoreOptions options) {
  options.dtype = kCompute;
  run_ranks(ranks, [&](Communicator& comm) {
    const at::NoGradGuard no_grad;
    const Units units(ranks, granularity);
    GatheredParameters store(units.all, comm, options);
    for (size_t unit = 0; unit < units.all.size(); ++unit) {
      store.adopt(unit, units.full(unit, 0));
    }
    store.finalize();
    for (int version = 0; version < 3; ++version) {
      if (version > 0) update(store, units, version, comm.rank());
      if (version == 2) pass(store, units, version, /*decodes=*/true);
      pass(store, units, version, /*decodes=*/false);
      pass(store, units, version, /*decodes=*/true);
      pass(store, units, version, /*decodes=*/false);
    }
    store.drop_uses();
    pass(store, units, 2, /*decodes=*/false);
  });
}

}  // namespace

TEST_CASE("codes of shards are those of whole matrices, of every version of the values") {
  for (const int ranks : {2, 3, 4}) {
    for (const auto granularity : {ShardGranularity::kFlat, ShardGranularity::kParameter}) {
      INFO(ranks << " ranks, granularity " << static_cast<int>(granularity));
      CHECK_NOTHROW(check_store(ranks, granularity, {}));
      CHECK_NOTHROW(check_store(ranks, granularity, {.overlap = false, .prefetch_blocks = 0}));
      CHECK_NOTHROW(check_store(ranks, granularity, {.keep_gathered = true}));
    }
  }
}

TEST_CASE("codes travel in a byte each, and all scales in one message after an update") {
  constexpr int kRanks = 2;
  run_ranks(kRanks, [](Communicator& comm) {
    const at::NoGradGuard no_grad;
    const Units units(kRanks, ShardGranularity::kFlat);
    const auto ledger = std::make_shared<CommunicationLedger>();
    const auto recorded = record_operations(comm.split(0, comm.rank()), ledger);
    GatheredParameters store(units.all, *recorded, {.dtype = kCompute});
    for (size_t unit = 0; unit < units.all.size(); ++unit) {
      store.adopt(unit, units.full(unit, 0));
    }
    store.finalize();
    pass(store, units, 0, /*decodes=*/false);
    for (int version = 1; version < 3; ++version) {
      ledger->clear();
      update(store, units, version, comm.rank());
      for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
        pass(store, units, version, /*decodes=*/false);
      }
      int64_t agreements = 0, products = 0, code_bytes = 0, value_bytes = 0, codes = 0;
      for (const LedgerOperation& each : ledger->operations) {
        if (each.kind == OperationKind::kAllReduce) ++agreements, products += each.numel;
        if (each.kind != OperationKind::kAllGather) continue;
        (each.dtype == at::kByte ? code_bytes : value_bytes) += each.bytes_sent;
        if (each.dtype == at::kByte) ++codes;
      }
      require(agreements == 1 && products == 6, agreements, " messages of scales, of ", products);
      // Three blocks share two buffers: two are gathered by the update, then the third and the
      // first one in each micro-batch.
      const int64_t matrices = units.all[1].layout.numel();
      require(codes == 8 && code_bytes == codes * matrices / kRanks, code_bytes, " bytes in ",
              codes, " gathers of ", matrices, " codes");
      require(value_bytes > 0 && value_bytes < code_bytes / 4, value_bytes, " bytes of norms");
    }
  });
}
