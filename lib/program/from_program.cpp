// SPDX-License-Identifier: MIT
#include "tessera/program/from_program.h"

#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "lib/core/folder_file.h"
#include "lib/program/adapters.h"
#include "lib/program/assemble_blocks.h"
#include "lib/program/costs.h"
#include "lib/program/cut_programs.h"
#include "lib/program/manifest.h"
#include "lib/program/program_block.h"
#include "lib/program/rewrites/apply.h"
#include "lib/program/tensor/tensor_cutter.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

constexpr const char* kProgramFile = "program.json";

using StoredNames = std::map<std::pair<std::string, std::string>, std::string>;

StoredNames stored_names(const program::ModelParts& parts) {
  StoredNames names;
  for (const auto& block : parts.blocks) {
    for (const program::BlockParameter& parameter : block->parameters) {
      names[{block->name, parameter.name}] = program::hub_name(parameter.entry);
    }
    for (const program::BlockBuffer& buffer : block->buffers) {
      names[{block->name, buffer.name}] = buffer.stored.empty() ? buffer.name : buffer.stored;
    }
  }
  return names;
}

// The plan as the context asks for it: with adapters, for a rank of a tensor axis.
std::shared_ptr<const program::BlockParts> plan_for(
    const std::shared_ptr<const program::BlockParts>& block, program::TensorCutter& cutter,
    const BuildContext& context) {
  const auto adapted =
      context.lora == nullptr ? block : program::with_adapters(*block, *context.lora);
  const TensorAxis axis(context);
  if (axis.size() == 1) return adapted;
  auto shared =
      cutter.cut(*adapted, axis.rank(), axis.size(), /*proves=*/!context.device.is_meta());
  const std::string reason =
      axis.sequence_parallel() ? program::sequence_problem(*shared) : std::string();
  check(reason.empty(), ErrorCode::kInvalidArgument, "block ", block->name,
        " of an exported program cannot hold a part of the tokens: ", reason,
        "; leave out --sequence_parallel");
  return shared;
}

BlockBuilder builder_of(std::shared_ptr<const program::BlockParts> block,
                        std::pair<int, int> crossing,
                        const std::shared_ptr<program::TensorCutter>& cutter) {
  BlockBuilder builder;
  builder.name = block->name;
  builder.cost = program::cost_of(*block);
  builder.takes = crossing.first;
  builder.gives = crossing.second;
  builder.build = [block = std::move(block), cutter](const BuildContext& context) {
    return std::make_unique<program::ProgramBlock>(plan_for(block, *cutter, context), context);
  };
  return builder;
}

std::function<double(int64_t)> flops_of(const program::ModelParts& parts) {
  double matrices = 0, attention = 0;
  for (const auto& block : parts.blocks) {
    matrices += program::cost_of(*block).flops_per_token;
    attention += program::attention_flops(*block);
  }
  return [=](int64_t sequence) { return matrices + attention * static_cast<double>(sequence); };
}

std::string packing_line(const program::ModelParts& parts) {
  for (const auto& block : parts.blocks) {
    for (const program::BlockVariant& variant : block->variants) {
      if (variant.unpacked.empty()) continue;
      return concat("takes no packed rows, since tokens may meet in ", variant.unpacked,
                    " of block ", block->name);
    }
  }
  return "takes packed rows";
}

// inputs receives those of each program.
program::ChangeProgram changing(const program::Manifest& manifest,
                                const program::Constants& constants, const ProgramOptions& options,
                                std::vector<program::ProofInputs>& inputs) {
  return [&](program::Graph& graph, const program::ProgramEntry& entry) {
    inputs.emplace_back(graph, manifest.inputs, constants, entry.dtype, entry.training);
    if (!options.own_operators) return;
    program::RewriteReport report;
    program::apply_rewrites(graph, inputs.back(), report);
    if (!options.report) return;
    for (const std::string& line : report.lines()) {
      log(LogLevel::kInfo, "model ", manifest.name, ", ", entry.file, ": ", line);
    }
  };
}

}  // namespace

bool has_program(const std::string& directory) {
  return std::filesystem::exists(std::filesystem::path(directory) / kProgramFile);
}

ModelSpec from_program(const std::string& directory, const ProgramOptions& options) {
  check(options.running_statistics_of_rank.value_or(0) >= 0, ErrorCode::kInvalidArgument,
        "running_statistics_of_rank is ", options.running_statistics_of_rank.value_or(0),
        "; expected a rank of the data axis");
  const program::Manifest manifest =
      program::read_manifest(Json::parse_file(file_in(directory, kProgramFile)));
  const auto constants = std::make_shared<const program::Constants>(
      manifest.constants.empty() ? std::string() : file_in(directory, manifest.constants));
  std::vector<program::ProofInputs> inputs;  // by program
  const program::CutPrograms programs = program::read_programs(
      directory, manifest, options.cut, changing(manifest, *constants, options, inputs));
  const program::PlanOptions block{
      .data_rank = options.running_statistics_of_rank.value_or(-1),
      .proof_inputs = options.own_operators ? inputs : std::vector<program::ProofInputs>()};
  if (options.report && !options.own_operators) {
    log(LogLevel::kInfo, "model ", manifest.name, ": ATen's operators were asked for");
  }
  for (const std::string& notice : programs.notices) {
    log(LogLevel::kInfo, "model ", manifest.name, ": ", notice);
  }
  if (programs.blocks.size() == 1) {
    log(LogLevel::kInfo, "model ", manifest.name,
        " is one block: zero3 and fsdp gather all of it at once, and it has one pipeline stage");
  }
  const program::ModelParts parts = program::assemble_blocks(programs, manifest, constants, block);
  if (options.report) {
    for (const std::string& line : parts.report.lines()) {
      log(LogLevel::kInfo, "model ", manifest.name, ": ", line);
    }
    log(LogLevel::kInfo, "model ", manifest.name, ": ", packing_line(parts));
  }
  std::vector<program::ProofInputs> by_variant;
  for (const size_t number : programs.of_entry) by_variant.push_back(inputs.at(number));
  program::TensorRules rules;
  if (!options.tensor_rules.empty()) rules.add(Json::parse_file(options.tensor_rules));
  const auto cutter =
      std::make_shared<program::TensorCutter>(std::move(rules), std::move(by_variant));
  ModelSpec spec;
  spec.name = manifest.name;
  spec.tensor_divisor = cutter->divisor(parts.blocks);
  spec.tied = parts.tied;
  for (size_t i = 0; i < parts.blocks.size(); ++i) {
    spec.blocks.push_back(builder_of(parts.blocks[i], parts.crossing[i], cutter));
  }
  spec.flops_per_token = flops_of(parts);
  spec.default_lora_targets = program::default_targets(manifest.model_type);
  spec.checkpoint_name = [names = stored_names(parts)](const std::string& block,
                                                       const std::string& parameter) {
    const auto stored = names.find({block, parameter});
    return stored == names.end() ? block + "." + parameter : stored->second;
  };
  return spec;
}

}  // namespace tessera
