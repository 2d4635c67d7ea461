#pragma once
// One pipeline stage's part of a model, and the order in which a step comes by it.
#include <cstdint>
#include <vector>

#include "tessera/backends/pipeline/partition.h"
#include "tessera/plan/layout_cost.h"
#include "tessera/sharding/flat_layout.h"

namespace tessera {

// Parameters that are gathered and reduced together.
struct PlannedUnit {
  FlatLayout layout;
  bool tied_here = false;  // two blocks of this stage share it
  bool tied_away = false;  // a block of another stage holds a copy

  int64_t numel() const { return layout.numel(); }
  int64_t gathered() const { return layout.resident_begin(); }
  int64_t resident() const { return numel() - gathered(); }  // in full on every rank
};

// One stage's part of the model, and the order in which a step comes by its blocks.
struct Stage {
  std::vector<PlannedUnit> units;
  std::vector<std::vector<size_t>> units_of_block;
  std::vector<size_t> visits;  // units in the order in which they are needed
  int64_t messages = 0;        // activations and their gradients handed on
  double whole = 0;            // elements that every tensor rank holds
  int64_t forwards_of_layers = 0, forwards_of_embedding = 0, forwards_of_head = 0;
  int64_t broadcasts = 0;  // activations and gradients that one stage gives to all

  double sum(int64_t (PlannedUnit::*part)() const) const {
    double total = 0;
    for (const PlannedUnit& unit : units) total += static_cast<double>((unit.*part)());
    return total;
  }
  double numel() const { return sum(&PlannedUnit::numel); }
  double resident() const { return sum(&PlannedUnit::resident); }
};

Stage make_stage(const LayoutPlan& plan, int index);

// A block of a stage.
struct StageBlock {
  size_t index = 0;        // in the model
  bool ends_part = false;  // units end with it
};

// The steps of make_stage().
// Units as docs/strategies.md has them: tied parameters alone, other parameters of a block
// together, consecutive small blocks too where fsdp is told so.
void make_units(const LayoutPlan& plan, const std::vector<StageBlock>& blocks, Stage& stage);
// Forward and backward of every micro-batch in the schedule's order.
void play_schedule(const LayoutPlan& plan, int index, const std::vector<ModelPart>& parts,
                   const std::vector<StageBlock>& blocks, Stage& stage);

}  // namespace tessera
