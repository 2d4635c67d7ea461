// SPDX-License-Identifier: MIT
#pragma once
// One pipeline stage's part of a model, and the order in which a step comes by it.
#include <cstdint>
#include <vector>

#include "lib/plan/model_shapes.h"
#include "tessera/backends/pipeline/partition.h"
#include "tessera/backends/pipeline/schedule.h"
#include "tessera/plan/layout_cost.h"
#include "tessera/sharding/flat_layout.h"

namespace tessera {

// Parameters that are gathered and reduced together; see ParameterUnit.
struct PlannedUnit {
  FlatLayout layout;
  bool frozen = false, apart = false;
  bool matrices = false;        // see ParameterUnit
  bool ends_with_rows = false;  // likewise
  size_t turn = 0;
  int stages = 1;  // that hold its parameters

  int64_t numel() const { return layout.numel(); }
  int64_t trained() const { return frozen ? 0 : numel(); }
  int64_t whole_matrices() const { return matrices ? numel() : 0; }
  int64_t gathered() const { return layout.resident_begin(); }
  int64_t resident() const { return numel() - gathered(); }  // in full on every rank
};

// Of blocks, in a step.
struct Visits {
  int64_t layers = 0, embedding = 0, head = 0;
};

// One stage's part of the model, and the order in which a step comes by its blocks.
struct Stage {
  ModelShapes shapes;
  std::vector<PlannedUnit> units;
  std::vector<std::vector<size_t>> units_of_block;
  std::vector<size_t> visits;  // units in the order in which they are needed
  Visits forwards, backwards;  // forwards include those that backward runs again
  int64_t messages = 0;        // activations and their gradients handed on
  int64_t broadcasts = 0;      // activations and gradients that one stage gives to all

  double sum(int64_t (PlannedUnit::*part)() const) const {
    double total = 0;
    for (const PlannedUnit& unit : units) total += static_cast<double>((unit.*part)());
    return total;
  }
  double numel() const { return sum(&PlannedUnit::numel); }
  double trained() const { return sum(&PlannedUnit::trained); }
  double whole_matrices() const { return sum(&PlannedUnit::whole_matrices); }
  double resident() const { return sum(&PlannedUnit::resident); }
};

// Of the whole model.
ModelShapes shapes_of(const LayoutPlan& plan);

Stage make_stage(const LayoutPlan& plan, int index);

// Which blocks the stages run, in which order.
struct StageLayout {
  PipelineSchedule schedule;
  std::vector<ModelPart> parts;             // of the model
  std::vector<std::vector<size_t>> blocks;  // by stage
  std::vector<bool> has_backward;           // by the model's blocks: it or one before it is trained
};
StageLayout stage_layout(const LayoutPlan& plan);

// A block of a stage.
struct StageBlock {
  size_t index = 0;        // in the model
  bool ends_unit = false;  // see BlockBuilder
};
using StageBlocks = std::vector<StageBlock>;

// The units of a stage that has its shapes: tied parameters alone, other parameters of a block
// together, frozen ones beside them, those of consecutive small blocks together where fsdp is told
// so. blocks: of every stage.
void make_units(const LayoutPlan& plan, const std::vector<StageBlocks>& blocks, size_t index,
                Stage& stage);

}  // namespace tessera
