// SPDX-License-Identifier: MIT
#include "lib/program/assemble_blocks.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lib/program/rewrites/joint_linear.h"
#include "lib/program/rewrites/program_view.h"
#include "lib/program/rewrites/rewrite.h"
#include "lib/program/rewrites/simplify.h"
#include "lib/program/rewrites/tables.h"
#include "lib/program/row_proof.h"
#include "lib/program/token_proof.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

bool ends_in_product(const Graph& graph) {
  if (graph.nodes.empty() || graph.outputs.size() != 1) return false;
  const Node& last = graph.nodes.back();
  bool makes = false;
  visit_writes(last, [&](ValueId id) { makes = makes || id == graph.outputs[0]; });
  return makes && (last.target == "aten.linear.default" || last.target == "tessera.linear");
}

// The extent that counts the tokens of the first input's rows; empty: it is constant.
std::string length_of(const Graph& graph) {
  for (const GraphInput& input : graph.inputs) {
    if (input.kind != InputKind::kUser) continue;
    const auto& sizes = graph.values[static_cast<size_t>(input.value)].sizes;
    return sizes.size() < 2 ? std::string() : sizes[1].expression;
  }
  return "";
}

// The piece in front of a last product with a parameter and without bias, and the parameter.
std::optional<std::pair<Graph, std::string>> before_product(const Graph& scores) {
  if (scores.nodes.empty() || scores.nodes.back().target != "tessera.linear") return std::nullopt;
  const Node& last = scores.nodes.back();
  const ValueId x = value_of(last, "x"), weight = value_of(last, "weight");
  if (result_of(last) != scores.outputs[0] || value_of(last, "bias") != kNoValue) {
    return std::nullopt;
  }
  for (const GraphInput& input : scores.inputs) {
    if (input.kind != InputKind::kParameter || input.value != weight) continue;
    Graph before = scores;
    before.outputs = {x};
    remove_unread(before);
    return std::pair(std::move(before), input.name);
  }
  return std::nullopt;
}

class BlockAssembler {
 public:
  BlockAssembler(const CutPrograms& programs, const Manifest& manifest,
                 std::shared_ptr<const Constants> constants, const PlanOptions& options)
      : programs_(programs),
        manifest_(manifest),
        constants_(std::move(constants)),
        data_rank_(options.data_rank),
        proof_inputs_(options.proof_inputs),
        proofs_(options.proof_inputs.size()) {
    find_tables();
    find_changing();
  }

  ModelParts assemble() {
    for (size_t i = 0; i < programs_.blocks.size(); ++i) {
      auto block = std::make_shared<BlockParts>();
      block->name = programs_.blocks[i].name;
      block->index = i;
      block->user_inputs = manifest_.inputs;
      block->constants = constants_;
      block->sliced = manifest_.sliced;
      block->data_rank = data_rank_;
      if (i + 1 == programs_.blocks.size()) block->loss = manifest_.loss;
      block->auxiliary_weight = manifest_.auxiliary_weight.value_or(0);
      add_variants(*block, programs_.blocks[i]);
      add_parameters(*block);
      place_products(*block);
      add_buffers(*block);
      model_.crossing.push_back(crossing_of(*block));
      model_.blocks.push_back(std::move(block));
    }
    return std::move(model_);
  }

 private:
  const std::string& owner_of(const std::string& parameter) const {
    const ParameterEntry* entry = manifest_.parameter(parameter);
    return entry->same_as.empty() ? entry->name : entry->same_as;
  }

  void find_tables() {
    for (const CutProgram& program : programs_.programs) {
      std::map<ValueId, std::string> parameters;
      for (const GraphInput& input : program.graph.inputs) {
        if (input.kind == InputKind::kParameter) parameters[input.value] = input.name;
      }
      for (const Node& node : program.graph.nodes) {
        if (node.target != "aten.embedding.default" && node.target != "tessera.embedding") continue;
        visit_reads(node, [&](ValueId id) {
          if (parameters.contains(id)) tables_.insert(owner_of(parameters[id]));
        });
      }
    }
  }

  void find_changing() {
    for (const BufferEntry& entry : manifest_.buffers) {
      if (entry.changes) changing_.insert(entry.name);
    }
    for (const CutProgram& program : programs_.programs) {
      for (const GraphInput& input : program.graph.inputs) {
        if (input.kind != InputKind::kBuffer || !program.facts.is_written(input.value)) continue;
        changing_.insert(input.name);
      }
    }
    check(changing_.empty() || data_rank_ >= 0, ErrorCode::kInvalidArgument, manifest_.file,
          ": the buffer \"", changing_.empty() ? "" : *changing_.begin(),
          "\" changes in forward, which every data rank computes from its own rows: say whose is "
          "the model's (ProgramOptions{.running_statistics_of_rank = 0})");
  }

  void add_variants(BlockParts& block, const BlockRange& range) {
    std::map<size_t, BlockVariant> of_program;
    for (size_t i = 0; i < manifest_.programs.size(); ++i) {
      const size_t number = programs_.of_entry[i];
      auto [known, added] = of_program.try_emplace(number);
      if (added) known->second = variant_of(programs_.programs[number], range, number);
      block.variants.push_back(known->second);
      block.variants.back().dtype = manifest_.programs[i].dtype;
      block.variants.back().training = manifest_.programs[i].training;
    }
  }

  BlockVariant variant_of(const CutProgram& program, const BlockRange& range, size_t number) {
    BlockVariant variant = pieces_of(program, range, number);
    variant.unpacked = why_not_packed(variant.main.interpreter->graph());
    variant.ends_in_product = ends_in_product(variant.main.interpreter->graph());
    variant.decodes =
        variant.unpacked.empty() && has_cached_form(variant.main.interpreter->graph());
    if (variant.unpacked.empty() && variant.auxiliary) variant.unpacked = "its balance loss";
    return variant;
  }

  BlockVariant pieces_of(const CutProgram& program, const BlockRange& range, size_t number) {
    const auto outputs_at = [&](size_t segment) {
      return outputs_of(program.graph, program.facts, program.segments, segment);
    };
    BlockVariant variant{.hidden = range.first == 0 ? 0 : outputs_at(range.first - 1).size()};
    const std::vector<ValueId> outputs = outputs_at(range.last);
    const auto piece = [&](const std::vector<ValueId>& wanted) {
      return piece_of(program.graph, program.facts, program.segments, range.first, range.last,
                      wanted);
    };
    const bool is_head = range.last + 1 == program.segments.names.size();
    if (is_head && manifest_.loss == LossKind::kCausal) {
      Graph scores = piece({outputs[0]});
      variant.acts_on_rows = acts_on_rows(scores);
      if (variant.acts_on_rows) {
        if (auto before = before_product(scores)) {
          variant.product =
              BlockProduct{share(std::move(before->first), number), std::move(before->second)};
        }
        variant.main = share(std::move(scores), number);
        if (manifest_.auxiliary_weight) variant.auxiliary = share(piece({outputs[1]}), number);
        return variant;
      }
    }
    Graph main = piece(outputs);
    if (number < proof_inputs_.size()) {
      const ProofInputs& inputs = proof_inputs_[number];
      std::optional<Graph> joined = with_whole_layers(main, inputs, proofs_[number], model_.report);
      std::optional<Graph> products =
          with_joint_products(joined ? *joined : main, inputs, proofs_[number], model_.report);
      if (products) joined = std::move(products);
      if (joined) variant.joined = share_with_tables(std::move(*joined), number);
    }
    variant.main = share_with_tables(std::move(main), number);
    return variant;
  }

  BlockPiece share_with_tables(Graph graph, size_t number) {
    std::vector<BlockTable> tables;
    number_attentions(graph);
    const std::string length = length_of(programs_.programs[number].graph);
    if (!length.empty()) {
      for (TakenTable& taken : take_tables(graph, length)) {
        tables.push_back({share(std::move(taken.graph), number), taken.paired});
      }
    }
    BlockPiece piece = share(std::move(graph), number);
    piece.tables = std::move(tables);
    return piece;
  }

  BlockPiece share(Graph graph, size_t number) {
    BlockPiece piece{.inputs = graph.inputs};
    const GraphFacts facts(graph);
    for (const GraphInput& input : graph.inputs) {
      piece.is_written.push_back(facts.is_written(input.value) ? 1 : 0);
    }
    auto& shared = interpreters_[concat(number, "\n", text_of(graph))];
    if (shared == nullptr) {
      shared = std::make_shared<Interpreter>(std::make_shared<const Graph>(std::move(graph)));
    }
    piece.interpreter = shared;
    return piece;
  }

  // Calls visit(input) for what the variants' pieces take.
  template <typename Visit>
  static void visit_inputs(const BlockParts& block, InputKind kind, const Visit& visit) {
    for (const BlockVariant& variant : block.variants) {
      for (const GraphInput& input : variant.main.inputs) {
        if (input.kind == kind) visit(input);
      }
      for (const BlockTable& table : variant.main.tables) {
        for (const GraphInput& input : table.piece.inputs) {
          if (input.kind == kind) visit(input);
        }
      }
      if (!variant.auxiliary) continue;
      for (const GraphInput& input : variant.auxiliary->inputs) {
        if (input.kind == kind) visit(input);
      }
    }
  }

  // "model.layers.3." in front of a parameter of the block model.layers.3.
  static std::string name_in(const BlockParts& block, const std::string& name) {
    const std::string prefix = block.name + ".";
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  }

  void add_parameters(BlockParts& block) {
    visit_inputs(block, InputKind::kParameter,
                 [&](const GraphInput& input) { add_parameter(block, input.name); });
  }

  void add_parameter(BlockParts& block, const std::string& used) {
    const std::string& owner = owner_of(used);
    if (!block.owner_of.try_emplace(used, owner).second) return;
    const bool known = std::any_of(block.parameters.begin(), block.parameters.end(),
                                   [&](const auto& one) { return one.entry.name == owner; });
    if (known) return;
    BlockParameter parameter{.entry = *manifest_.parameter(owner),
                             .name = name_in(block, owner),
                             .drawn_as = block.parameters.size()};
    parameter.is_table = tables_.contains(owner) ||
                         (block.loss == LossKind::kCausal && parameter.entry.shape.size() == 2);
    const auto [first, added] = owners_.try_emplace(owner, std::pair(block.name, parameter.name));
    if (!added) {
      parameter.alias = true;
      model_.tied.push_back(
          {first->second.first, first->second.second, block.name, parameter.name});
    }
    block.parameters.push_back(std::move(parameter));
  }

  // Products of the same input lie side by side, so that they are one.
  void place_products(BlockParts& block) const {
    std::vector<std::string> order;
    for (const BlockVariant& variant : block.variants) {
      if (!variant.joined || !order.empty()) continue;
      const Graph& graph = variant.joined->interpreter->graph();
      for (const Node& node : graph.nodes) {
        for (const ValueId id : adjacent_parameters(node)) {
          for (size_t i = 0; i < graph.inputs.size(); ++i) {
            const GraphInput& input = variant.joined->inputs[i];
            if (graph.inputs[i].value == id) order.push_back(owner_of(input.name));
          }
        }
      }
    }
    const auto place = [&](const BlockParameter& parameter) {
      return std::find(order.begin(), order.end(), parameter.entry.name) - order.begin();
    };
    std::stable_sort(block.parameters.begin(), block.parameters.end(),
                     [&](const auto& a, const auto& b) { return place(a) < place(b); });
  }

  void add_buffers(BlockParts& block) {
    visit_inputs(block, InputKind::kBuffer, [&](const GraphInput& input) {
      add_buffer(block, *manifest_.buffer(input.name));
    });
  }

  // Constants that are stored are the model's once, by the first block that uses them.
  void add_buffer(BlockParts& block, const BufferEntry& entry) {
    const bool changes = changing_.contains(entry.name);
    if (!changes && (!entry.persistent || entry.stored.empty())) return;
    const auto [first, added] = buffers_.try_emplace(entry.name, block.index);
    check(added || !changes || first->second == block.index, ErrorCode::kInvalidArgument,
          manifest_.file, ": the buffer \"", entry.name, "\" changes and is used by two blocks");
    const bool known = std::any_of(block.buffers.begin(), block.buffers.end(),
                                   [&](const auto& one) { return one.name == entry.name; });
    if (known || first->second != block.index) return;
    block.buffers.push_back({entry.name, entry.stored, entry.shape, entry.dtype, changes});
  }

  static std::pair<int, int> crossing_of(const BlockParts& block) {
    const BlockVariant& variant = block.variants.front();
    const auto outputs = static_cast<int>(variant.main.interpreter->graph().outputs.size());
    return {std::max(1, static_cast<int>(variant.hidden)), block.loss ? 0 : outputs};
  }

  const CutPrograms& programs_;
  const Manifest& manifest_;
  std::shared_ptr<const Constants> constants_;
  int data_rank_;
  const std::vector<ProofInputs>& proof_inputs_;
  std::vector<Proofs> proofs_;  // by program
  std::set<std::string> tables_, changing_;
  std::map<std::string, std::shared_ptr<const Interpreter>> interpreters_;  // by their text
  std::map<std::string, std::pair<std::string, std::string>> owners_;       // block, name there
  std::map<std::string, size_t> buffers_;
  ModelParts model_;
};

}  // namespace

ModelParts assemble_blocks(const CutPrograms& programs, const Manifest& manifest,
                           std::shared_ptr<const Constants> constants, const PlanOptions& options) {
  return BlockAssembler(programs, manifest, std::move(constants), options).assemble();
}

}  // namespace tessera::program
