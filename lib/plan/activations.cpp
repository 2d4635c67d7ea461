// SPDX-License-Identifier: MIT
#include "lib/plan/activations.h"

#include <algorithm>
#include <map>
#include <utility>

#include "backends/pipeline/stage_plan.h"
#include "lib/plan/block_memory.h"
#include "lib/plan/stage.h"

namespace tessera {
namespace {

constexpr int kReceivesAhead = 2;  // turns, as of Pipeline

// Plays a stage's turns and adds up what its tensors take.
class Play {
 public:
  Play(const LayoutPlan& plan, const BlockMeter& meter, const StageLayout& layout, int stage,
       Pass pass)
      : plan_(plan),
        meter_(meter),
        layout_(layout),
        trains_(pass == Pass::kStep),
        turns_(plan_stage(trains_ ? layout.schedule : forwards_of(layout.schedule), stage)) {
    posted_.assign(turns_.arrivals.size(), 0);
  }

  Activations run() {
    for (size_t turn = 0; turn < turns_.turns.size(); ++turn) {
      post(static_cast<int>(turn));
      take(static_cast<int>(turn));
    }
    return most_;
  }

 private:
  using Kind = PipelineAction::Kind;
  struct Sent {
    int destination, needed;
    double bytes;
  };

  void hold(double Activations::*kind, double bytes) { now_.*kind += bytes; }
  void drop(double Activations::*kind, double bytes) { now_.*kind -= bytes; }
  void moment(double running, bool is_head = false) {
    if (now_.total() + running <= most_.total()) return;
    most_ = now_;
    most_.running = running;
    most_.head_runs = is_head;
  }
  bool is_loss(size_t block) const {
    return plan_.model.has_loss && block + 1 == plan_.model.block_count();
  }
  // Whether its output stays with what backward needs of it.
  bool stays(size_t block) const {
    return trains_ && !plan_.parallel.recomputes(block) && layout_.has_backward[block];
  }
  const BlockBytes& bytes_of(size_t block) const {
    return meter_.of(block, /*again=*/trains_ && plan_.parallel.recomputes(block));
  }
  static double Activations::*kind_of(size_t block) {
    return block == 0 ? &Activations::embedding : &Activations::layers;
  }
  // What the first block of a part takes comes from elsewhere.
  double input_bytes(size_t block) const {
    return block == 0 ? 0 : static_cast<double>(meter_.of(block - 1).output);
  }
  void drop_input(size_t block, size_t first) {
    if (block == 0) return;
    if (block == first) {
      drop(&Activations::gradients, input_bytes(block));
    } else if (!stays(block - 1)) {
      drop(kind_of(block - 1), input_bytes(block));
    }
  }

  void forward(size_t first, size_t count) {
    for (size_t b = first; b < first + count; ++b) {
      const BlockBytes& bytes = bytes_of(b);
      if (is_loss(b)) {
        moment(static_cast<double>(trains_ ? bytes.forward : bytes.plain), /*is_head=*/true);
        drop_input(b, first);
        if (trains_) hold(&Activations::gradients, static_cast<double>(bytes.input));
      } else {
        moment(static_cast<double>(stays(b) ? bytes.forward : bytes.plain));
        hold(kind_of(b), static_cast<double>(stays(b) ? bytes.kept : bytes.output));
        if (!trains_) drop_input(b, first);
      }
    }
  }

  // The gradient of the part's output is held; leaves that of its input.
  void backward(size_t first, size_t count) {
    for (size_t b = first + count; b-- > first;) {
      if (is_loss(b)) continue;
      if (!layout_.has_backward[b]) return;
      const BlockBytes& bytes = bytes_of(b);
      if (!stays(b)) {
        moment(static_cast<double>(bytes.forward));
        hold(kind_of(b), static_cast<double>(bytes.kept));
      }
      // Strategies cannot tell what is trained before a later stage.
      const bool at_once = turns_.stage == 0 && (b == 0 || !layout_.has_backward[b - 1]);
      const bool defers = bytes.deferred > 0 && !at_once;
      moment(static_cast<double>(defers ? bytes.split : bytes.backward));
      hold(&Activations::gradients, static_cast<double>(bytes.input));
      drop(&Activations::gradients, static_cast<double>(bytes.output));
      drop(kind_of(b), static_cast<double>(bytes.kept));
      if (defers) hold(&Activations::deferred, static_cast<double>(bytes.deferred));
      drop_input(b, first);
      if (defers && turns_.stage == 0) make_weights(b, 1);
    }
  }

  void make_weights(size_t first, size_t count) {
    for (size_t b = first + count; b-- > first;) {
      const BlockBytes& bytes = bytes_of(b);
      moment(static_cast<double>(bytes.weights));
      drop(&Activations::deferred, static_cast<double>(bytes.deferred));
    }
  }

  // Buffers of messages that are received ahead.
  void post(int turn) {
    for (size_t source = 0; source < turns_.arrivals.size(); ++source) {
      const auto& arrivals = turns_.arrivals[source];
      for (size_t& next = posted_[source]; next < arrivals.size(); ++next) {
        const auto& arrival = arrivals[next];
        const int ahead = plan_.parallel.overlap ? kReceivesAhead : 0;
        const bool mine = static_cast<int>(source) == turns_.stage;
        if (mine || arrival.due > turn + ahead || arrival.open > turn) break;
        hold(&Activations::gradients, boundary_bytes(arrival.message.boundary));
        sent_by_turn_[arrival.needed] = {static_cast<int>(source), arrival.sent};
      }
    }
  }

  double boundary_bytes(int part) const {
    return input_bytes(layout_.parts[static_cast<size_t>(part)].first);
  }

  void take(int turn) {
    const auto& [action, input, output, output_needed] = turns_.turns[static_cast<size_t>(turn)];
    if (const auto from = sent_by_turn_.find(turn); from != sent_by_turn_.end()) {
      release(from->second.first, from->second.second);
    }
    const size_t last = plan_.model.block_count() - 1;
    if (action.kind == Kind::kEmbed) {
      forward(0, 1);
      // One stage hands it on.
      if (!trains_ && turns_.stage > 0) drop(kind_of(0), static_cast<double>(meter_.of(0).output));
      return;
    }
    if (action.kind == Kind::kHead) {
      hold(&Activations::gradients, input_bytes(last));
      forward(last, 1);
      // One stage needs the gradient.
      if (trains_ && turns_.stage + 1 < turns_.stages) {
        drop(&Activations::gradients, input_bytes(last));
      }
      return;
    }
    if (action.kind == Kind::kEmbedBackward) {
      if (turns_.stage > 0) hold(&Activations::gradients, static_cast<double>(meter_.of(0).output));
      return backward(0, 1);
    }
    const ModelPart& part =
        layout_.parts[static_cast<size_t>(layout_.schedule.part(turns_.stage, action))];
    const size_t end = part.first + part.count - 1;
    if (action.kind == Kind::kForward) {
      forward(part.first, part.count);
      if (stays(end) || is_loss(end)) return;
      const auto bytes = static_cast<double>(meter_.of(end).output);
      drop(kind_of(end), bytes);
      hold(&Activations::gradients, bytes);
      send(output, output_needed, bytes);
    } else if (action.kind == Kind::kWeights) {
      if (turns_.stage > 0) make_weights(part.first, part.count);
    } else {
      backward(part.first, part.count);
      send(output, output_needed, part.first == 0 ? 0 : input_bytes(part.first));
    }
  }

  // Held until the destination shows that it has come.
  void send(const std::optional<PipelineMessage>& output, int needed, double bytes) {
    drop(&Activations::gradients, output ? 0 : bytes);
    if (output) sent_.push_back({output->destination, needed, bytes});
  }
  void release(int destination, int until) {
    std::erase_if(sent_, [&](const Sent& sent) {
      const bool gone = sent.destination == destination && sent.needed <= until;
      if (gone) drop(&Activations::gradients, sent.bytes);
      return gone;
    });
  }

  const LayoutPlan& plan_;
  const BlockMeter& meter_;
  const StageLayout& layout_;
  const bool trains_;
  const StagePlan turns_;
  Activations now_, most_;
  std::vector<size_t> posted_;
  std::map<int, std::pair<int, int>> sent_by_turn_;  // source and its turn, by the turn that takes
  std::vector<Sent> sent_;
};

}  // namespace

BatchShape shape_of(const MicroBatch& micro_batch) {
  const at::Tensor &ids = micro_batch.input_ids, &labels = micro_batch.labels;
  return {
      .rows = ids.size(0),
      .length = ids.size(1),
      .packed = micro_batch.packed.lengths,
      .sequence = micro_batch.packed.sequence,
      .masked = micro_batch.attention_mask.defined(),
      .labels = labels.dim() == 1 ? labels.size(0) : 0,
      .head_rows = micro_batch.head_positions.defined() ? micro_batch.head_positions.size(0) : 0};
}

std::vector<Activations> activations_of(const LayoutPlan& plan, const BatchShape& batch,
                                        Pass pass) {
  const BlockMeter meter(plan, batch, pass);
  const StageLayout layout = stage_layout(plan);
  std::vector<Activations> stages;
  for (int stage = 0; stage < plan.mesh.pipeline; ++stage) {
    stages.push_back(activations_of_stage(plan, meter, layout, stage, pass));
  }
  return stages;
}

Activations activations_of_stage(const LayoutPlan& plan, const BlockMeter& meter,
                                 const StageLayout& layout, int stage, Pass pass) {
  Activations most = Play(plan, meter, layout, stage, pass).run();
  for (size_t block : layout.blocks[static_cast<size_t>(stage)]) {
    most.defers = most.defers || meter.of(block).deferred > 0;
    most.constants += static_cast<double>(meter.of(block).constants);
    most.cache += static_cast<double>(meter.of(block).cache * plan.accumulation);
  }
  most.inputs = static_cast<double>(meter.batch_bytes() * plan.accumulation);
  return most;
}

}  // namespace tessera
