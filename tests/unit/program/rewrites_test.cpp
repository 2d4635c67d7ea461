// SPDX-License-Identifier: MIT
// Regions that tessera's operators replace, and their proofs.
#include <ATen/ATen.h>

#include <map>

#include "lib/core/folder_file.h"
#include "lib/program/assemble_blocks.h"
#include "lib/program/cut_programs.h"
#include "lib/program/rewrites/apply.h"
#include "lib/program/rewrites/program_view.h"
#include "tests/support/test.hpp"
#include "tests/unit/program/committed.h"

using namespace tessera;
using namespace tessera::program;
using namespace tessera::test;

namespace {

// Counts of the targets in the rewritten training program, and the report.
struct Rewritten {
  std::map<std::string, int> targets;
  RewriteReport report;
};

Rewritten rewritten(const std::string& directory) {
  const Manifest manifest = read_manifest(Json::parse_file(file_in(directory, "program.json")));
  const Constants constants(file_in(directory, manifest.constants));
  Rewritten result;
  read_programs(directory, manifest, true, [&](Graph& graph, const ProgramEntry& entry) {
    const ProofInputs inputs(graph, manifest.inputs, constants, entry.dtype, entry.training);
    if (!entry.training) return;
    apply_rewrites(graph, inputs, result.report);
    for (const Node& node : graph.nodes) ++result.targets[node.target];
  });
  return result;
}

}  // namespace

TEST_CASE("norms, gates and products of exported decoders become tessera's") {
  const Rewritten llama = rewritten(program_directory("llama"));
  for (const std::string& line : llama.report.lines()) UNSCOPED_INFO(line);
  CHECK(llama.targets.at("tessera.rms_norm") == 5);
  CHECK(llama.targets.at("tessera.swiglu") == 2);
  CHECK(llama.targets.at("tessera.linear") == 15);
  CHECK(llama.targets.at("tessera.attention") == 2);
  CHECK(!llama.targets.contains("aten.scaled_dot_product_attention.default"));
  CHECK(!llama.targets.contains("aten.le.Tensor"));  // the mask is gone
  CHECK(!llama.targets.contains("aten.rsqrt.default"));
}

namespace {

Rewritten rewritten_fixture(const std::string& name) { return rewritten(program_directory(name)); }

}  // namespace

TEST_CASE("attention of exported decoders becomes tessera's with its window, tables and heads") {
  for (const std::string name :
       {"gemma2", "gemma3", "gpt_neox", "gpt_oss", "llama", "mpt", "olmoe", "phi3"}) {
    INFO(name);
    const Rewritten program = rewritten_fixture(name);
    for (const std::string& line : program.report.lines()) UNSCOPED_INFO(line);
    CHECK(program.targets.at("tessera.attention") == 2);
    CHECK(!program.targets.contains("aten.scaled_dot_product_attention.default"));
    CHECK((name.starts_with("gpt_oss") || name == "olmoe" ||
           !program.targets.contains("aten.softmax.int")));
  }
}

namespace {

// Arguments of this name of the program's attentions.
std::vector<Argument> arguments_of_attentions(const std::string& name,
                                              const std::string& argument) {
  const std::string directory = program_directory(name);
  const Manifest manifest = read_manifest(Json::parse_file(file_in(directory, "program.json")));
  const Constants constants(file_in(directory, manifest.constants));
  std::vector<Argument> found;
  read_programs(directory, manifest, true, [&](Graph& graph, const ProgramEntry& entry) {
    RewriteReport report;
    apply_rewrites(
        graph, ProofInputs(graph, manifest.inputs, constants, entry.dtype, entry.training), report);
    for (const Node& node : graph.nodes) {
      if (node.target == "tessera.attention") found.push_back(*argument_of(node, argument));
    }
  });
  return found;
}

}  // namespace

TEST_CASE("attention spelt out has the soft cap, sinks and slopes of the program") {
  // attn_logit_softcapping in config.json
  CHECK((arguments_of_attentions("gemma2", "softcap") ==
         std::vector<Argument>(2, Argument(Item(2.0)))));
  for (const Argument& sinks : arguments_of_attentions("gpt_oss", "sinks")) {
    CHECK(std::holds_alternative<ValueRef>(std::get<Item>(sinks)));
  }
  // Of three heads: those of four heads, in the order of Press et al. 2022.
  const std::vector<Item> slopes = {Item(0.0625), Item(0.00390625), Item(0.25)};
  CHECK((arguments_of_attentions("mpt", "slopes") == std::vector<Argument>(2, Argument(slopes))));
}

namespace {

// Three rows, end to end in one sequence, and each alone.
struct Rows {
  std::vector<at::Tensor> ids, labels;  // [1, tokens]
  MicroBatch packed;
};

Rows rows_of(const std::vector<int64_t>& lengths, int64_t vocabulary) {
  Rows rows;
  at::Generator generator = at::detail::createCPUGenerator(7);
  int64_t tokens = 0;
  for (const int64_t length : lengths) {
    rows.ids.push_back(at::randint(1, vocabulary, {1, length}, generator, at::dtype(at::kLong)));
    rows.labels.push_back(at::randint(1, vocabulary, {1, length}, generator, at::dtype(at::kLong)));
    tokens += length;
  }
  rows.packed = make_micro_batch(at::cat(rows.ids, 1), at::cat(rows.labels, 1));
  rows.packed.packed = make_packed_rows(lengths, tokens);
  return rows;
}

// Sum of the losses of the rows, each in a micro-batch of its own, and its gradients.
ProgramStep step_by_rows(LoadedModel& loaded, const Rows& rows) {
  ProgramStep total;
  const auto count = static_cast<double>(rows.packed.target_count);
  for (size_t i = 0; i < rows.ids.size(); ++i) {
    const MicroBatch one = make_micro_batch(rows.ids[i], rows.labels[i]);
    const ProgramStep result = step(loaded, one, {.gradient_in_forward = true});
    const double share = static_cast<double>(one.target_count) / count;
    total.loss += result.loss * share;
    for (const auto& [name, gradient] : result.gradients) {
      at::Tensor& sum = total.gradients[name];
      sum = sum.defined() ? sum + gradient * share : gradient * share;
    }
  }
  return total;
}

}  // namespace

TEST_CASE("attention has the windows, scales and tables of the program") {
  const std::vector<Argument> windows = {Item(int64_t{6}), Item(int64_t{0})};
  for (const std::string name : {"gemma2", "gemma3", "gpt_oss"}) {  // sliding_window in config.json
    CHECK((arguments_of_attentions(name, "window") == windows));
  }
}

TEST_CASE("packed rows of exported decoders give the numbers of each row alone") {
  const std::string name =
      GENERATE("gemma2", "gemma3", "llama", "mpt", "phi3", "gpt_neox", "qwen2_moe");
  INFO(name);
  LoadedModel loaded(program_directory(name));
  for (const auto& block : loaded.model.blocks()) CHECK(block->supports_packed_rows());
  const Rows rows = rows_of({9, 1, 14, 5}, 96);  // gemma3's window has 6
  const ProgramStep packed = step(loaded, rows.packed, {.gradient_in_forward = true});
  const ProgramStep alone = step_by_rows(loaded, rows);
  CHECK(packed.loss == Approx(alone.loss).epsilon(1e-6));
  for (const auto& [parameter, expected] : alone.gradients) {
    INFO(parameter);
    const double worst = (packed.gradients.at(parameter) - expected).abs().max().item<double>();
    CHECK(worst <= 1e-5 * expected.abs().max().item<double>());
  }
}

TEST_CASE("experts of an exported module that took their tokens become one operator") {
  const Rewritten program = rewritten_fixture("olmoe");
  for (const std::string& line : program.report.lines()) UNSCOPED_INFO(line);
  CHECK(program.targets.at("tessera.experts") == 2);
  CHECK(!program.targets.contains("aten._grouped_mm.default"));
  CHECK(!program.targets.contains("aten.sort.default"));
  // Biases and clamped gates.
  const Rewritten other = rewritten_fixture("gpt_oss");
  for (const std::string& line : other.report.lines()) UNSCOPED_INFO(line);
  CHECK(!other.targets.contains("tessera.experts"));
}

TEST_CASE("layers of experts take packed rows, and are not recorded") {
  LoadedModel dense(program_directory("llama")), experts(program_directory("qwen2_moe"));
  const auto &layer = dense.model.blocks()[1], &routed = experts.model.blocks()[1];
  CHECK(layer->is_recordable(/*training=*/true));
  CHECK(routed->supports_packed_rows());
  CHECK(routed->supports_kv_cache());
  CHECK_FALSE(routed->is_recordable(/*training=*/true));
}

TEST_CASE("programs in which tokens may meet elsewhere take no packed rows") {
  for (const std::string name : {"gpt_oss", "olmoe"}) {
    LoadedModel loaded(program_directory(name));
    CHECK(!loaded.model.blocks()[1]->supports_packed_rows());
  }
  LoadedModel plain(program_directory("llama"), {.own_operators = false});
  CHECK(plain.model.blocks()[0]->supports_packed_rows());
  CHECK(!plain.model.blocks()[1]->supports_packed_rows());
}

namespace {

// Largest difference of a gradient beside its own largest element, or a thousandth of the largest
// of all: a key's bias moves all scores of a query alike, so its gradient is 0 but for rounding.
double worst_gradient(const ProgramStep& actual, const ProgramStep& expected) {
  double worst = 0, least = 0;
  for (const auto& [name, gradient] : expected.gradients) {
    least = std::max(least, 1e-3 * gradient.abs().max().item<double>());
  }
  for (const auto& [name, gradient] : expected.gradients) {
    const double largest = std::max(gradient.abs().max().item<double>(), least);
    const double difference =
        (actual.gradients.at(name) - gradient).abs().max().item<double>() / largest;
    worst = std::max(worst, difference);
  }
  return worst;
}

bool takes_packed_rows(const LoadedModel& loaded) {
  const auto& blocks = loaded.model.blocks();
  return std::all_of(blocks.begin(), blocks.end(),
                     [](const auto& block) { return block->supports_packed_rows(); });
}

}  // namespace

TEST_CASE("own operators give ATen's losses and gradients") {
  const std::string name =
      GENERATE("gemma2", "gemma3", "gpt_neox", "gpt_oss", "llama", "mpt", "olmoe", "phi3");
  INFO(name);
  LoadedModel own(program_directory(name)), aten(program_directory(name), {.own_operators = false});
  const MicroBatch batch = causal_batch(reference_of(name).at("batches").at(size_t{0}));
  const ProgramStep actual = step(own, batch), expected = step(aten, batch);
  CHECK(actual.loss == Approx(expected.loss).epsilon(1e-6));
  CHECK(worst_gradient(actual, expected) <= 1e-4);
}

TEST_CASE("rows with padding give ATen's losses and gradients where the program takes a mask") {
  const std::string directory = program_directory("llama_masked");
  const Rewritten program = rewritten(directory);
  for (const std::string& line : program.report.lines()) UNSCOPED_INFO(line);
  CHECK(program.targets.at("tessera.attention") == 2);
  LoadedModel own(directory), aten(directory, {.own_operators = false});
  MicroBatch batch = causal_batch(reference_of("llama_masked").at("batches").at(size_t{0}));
  const ProgramStep whole = step(own, batch), expected_whole = step(aten, batch);
  CHECK(whole.loss == Approx(expected_whole.loss).epsilon(1e-6));
  batch.attention_mask = padded_tokens(batch.input_ids.size(0), batch.input_ids.size(1));
  batch.labels = batch.labels.masked_fill(batch.attention_mask.logical_not(), kIgnoredLabel);
  // A token in front of padding is supervised with what comes behind it.
  batch.target_count = batch.labels.ne(kIgnoredLabel).sum().item<int64_t>();
  for (const bool fused : {false, true}) {
    const ProgramStep actual = step(own, batch, {.fused = fused}), expected = step(aten, batch);
    CHECK(std::abs(expected.loss - expected_whole.loss) > 1e-3);
    CHECK(actual.loss == Approx(expected.loss).epsilon(1e-6));
    CHECK(worst_gradient(actual, expected) <= 1e-4);
  }
}

namespace {

// Targets of the operators that a block of the model runs.
std::vector<std::string> layer_targets(const std::string& directory, size_t block) {
  const Manifest manifest = read_manifest(Json::parse_file(file_in(directory, "program.json")));
  const auto constants = std::make_shared<const Constants>(file_in(directory, manifest.constants));
  PlanOptions options{.data_rank = 0};
  const CutPrograms programs =
      read_programs(directory, manifest, true, [&](Graph& graph, const ProgramEntry& entry) {
        RewriteReport report;
        options.proof_inputs.emplace_back(graph, manifest.inputs, *constants, entry.dtype,
                                          entry.training);
        apply_rewrites(graph, options.proof_inputs.back(), report);
      });
  const ModelParts planned = assemble_blocks(programs, manifest, constants, options);
  for (const std::string& line : planned.report.lines()) UNSCOPED_INFO(line);
  const BlockVariant& variant = planned.blocks[block]->variants.front();
  std::vector<std::string> targets;
  const BlockPiece& piece = variant.joined ? *variant.joined : variant.main;
  for (const Node& node : piece.interpreter->graph().nodes) targets.push_back(node.target);
  return targets;
}

}  // namespace

TEST_CASE("a whole layer of an exported decoder becomes one operator") {
  for (const std::string name : {"llama", "llama_masked", "phi3"}) {
    INFO(name);
    CHECK(layer_targets(program_directory(name), 1) ==
          std::vector<std::string>{"tessera.decoder_layer"});
  }
  // Sandwich norms, and branches side by side.
  for (const std::string name : {"gemma2", "gemma3", "gpt_neox"}) {
    INFO(name);
    int joint = 0;
    for (const std::string& target : layer_targets(program_directory(name), 1)) {
      CHECK(target != "tessera.decoder_layer");
      joint += target == "tessera.joint_linear" ? 1 : 0;
    }
    // Queries, keys and values; gate and up. GPT-NeoX has the first as one layer.
    CHECK(joint == (name == "gpt_neox" ? 0 : 2));
  }
}

TEST_CASE("a whole layer gives ATen's losses and gradients in its composed and its fused version") {
  const std::string name = GENERATE("llama", "phi3");
  const bool fused = GENERATE(false, true);
  INFO(name << (fused ? ", fused" : ", composed"));
  LoadedModel own(program_directory(name)), aten(program_directory(name), {.own_operators = false});
  const MicroBatch batch = causal_batch(reference_of(name).at("batches").at(size_t{0}));
  const ProgramStep actual = step(own, batch, {.fused = fused}), expected = step(aten, batch);
  CHECK(actual.loss == Approx(expected.loss).epsilon(1e-6));
  CHECK(worst_gradient(actual, expected) <= 1e-4);
  const Rows rows = rows_of({9, 1, 14, 5}, 96);
  const ProgramStep packed = step(own, rows.packed, {.fused = fused});
  const ProgramStep alone = step_by_rows(own, rows);
  CHECK(packed.loss == Approx(alone.loss).epsilon(1e-6));
  CHECK(worst_gradient(packed, alone) <= 1e-4);
}

// Directories of exports in TESSERA_EXPORTED_FAMILIES: what is replaced, own operators beside
// ATen's, packed rows beside each row alone.
TEST_CASE("exported families beside ATen's operators and packed") {
  const char* root = std::getenv("TESSERA_EXPORTED_FAMILIES");
  if (root == nullptr) return;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const std::string directory = entry.path().string(), name = entry.path().filename().string();
    for (const std::string& line : rewritten(directory).report.lines()) {
      std::printf("%s: %s\n", name.c_str(), line.c_str());
    }
    for (const std::string& target : layer_targets(directory, 1)) {
      std::printf("%s: layer runs %s\n", name.c_str(), target.c_str());
    }
    INFO(name);
    LoadedModel own(directory), aten(directory, {.own_operators = false});
    const Rows rows = rows_of({9, 2, 14, 5}, 60);
    const ProgramStep alone = step_by_rows(own, rows), by_aten = step_by_rows(aten, rows);
    CHECK(alone.loss == Approx(by_aten.loss).epsilon(1e-5));
    CHECK(worst_gradient(alone, by_aten) <= 5e-5);
    std::printf("%s: beside ATen loss %.1e, gradients %.1e\n", name.c_str(),
                std::abs(alone.loss / by_aten.loss - 1), worst_gradient(alone, by_aten));
    if (!takes_packed_rows(own)) continue;
    const ProgramStep packed = step(own, rows.packed);
    CHECK(packed.loss == Approx(alone.loss).epsilon(1e-5));
    CHECK(worst_gradient(packed, alone) <= 5e-5);
    std::printf("%s: packed rows, loss %.1e, gradients %.1e\n", name.c_str(),
                std::abs(packed.loss / alone.loss - 1), worst_gradient(packed, alone));
  }
}
