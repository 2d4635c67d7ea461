// SPDX-License-Identifier: MIT
#include "tests/fuzz/language_models.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "tessera/model/lora.h"
#include "tests/support/fused_layers.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"

namespace tessera::testing {
namespace {

using Random = std::mt19937_64;

template <typename T = int64_t>
T draw_from(Random& random, const std::vector<T>& values) {
  return values[random() % values.size()];
}

// Large enough that logits and scores matter.
constexpr double kInitializerRange = 0.3;

DecoderConfig config_of(const FuzzCase& c) {
  DecoderConfig config = LanguageModel::defaults(c.model);
  config.name = c.model;
  config.vocabulary = c.vocabulary;
  config.hidden = c.hidden;
  config.layers = c.layers;
  config.heads = c.heads;
  config.attention_dropout = c.attention_dropout;
  config.initializer_range = kInitializerRange;
  config.tied_head = c.tie == "first";
  return config;
}

// Row lengths that fill sequences, possibly except the end of the last one.
std::vector<int64_t> random_lengths(int64_t sequences, int64_t length, uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < sequences; ++i) {
    for (int64_t left = length; left > 0; left -= lengths.back()) {
      lengths.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(left)));
    }
  }
  if (lengths.back() < length && random() % 2 == 0) lengths.pop_back();
  return lengths;
}

// Records the seeds of its training micro-batches, where they are whole: parts of rows draw
// nothing.
class NotingHead final : public Head {
 public:
  NotingHead(std::unique_ptr<Block> head, std::shared_ptr<SeedLog> seeds)
      : head_(std::move(head)), seeds_(std::move(seeds)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    if (context.training && context.cut_rows == nullptr) seeds_->add(batch, context.seed);
    return head_->forward(hidden, batch, context);
  }
  at::Tensor logits(const at::Tensor& hidden, const MicroBatch& batch,
                    const BlockContext& context) override {
    return dynamic_cast<Head&>(*head_).logits(hidden, batch, context);
  }
  bool supports_packed_rows() const override { return head_->supports_packed_rows(); }
  bool takes_cut_rows() const override { return head_->takes_cut_rows(); }
  bool takes_fp8() const override { return head_->takes_fp8(); }
  bool supports_kv_cache() const override { return head_->supports_kv_cache(); }
  std::vector<Parameter> parameters() override { return head_->parameters(); }

 private:
  std::unique_ptr<Block> head_;
  std::shared_ptr<SeedLog> seeds_;
};

bool is_rotary(const FuzzCase& c) { return c.model != "bloom" && c.model != "gpt2"; }

bool has_experts(const FuzzCase& c) {
  return c.model == "glm4_moe" || c.model == "gpt_oss" || c.model == "mixtral" ||
         c.model == "olmoe" || c.model == "qwen2_moe" || c.model == "qwen3_moe";
}

// Adds delta [experts, out, in] of gate, up or down to its rows of the tensor of all experts.
void add_of_experts(const std::string& module, const at::Tensor& delta,
                    std::map<std::string, at::Tensor>& weights) {
  const std::string folder = module.substr(0, module.rfind("experts.") + 8);
  const std::string part = module.substr(folder.size());
  const bool down = part == "down_proj." || part == "w2.", up = part == "up_proj." || part == "w3.";
  at::Tensor& weight = weights.at(folder + (down ? "down_proj" : "gate_up_proj"));
  const at::Tensor none = at::zeros_like(delta);
  weight = weight + (down ? delta : up ? at::cat({none, delta}, 1) : at::cat({delta, none}, 1));
}

// The same of a tensor of all experts, whose adapters have PEFT's names: gate_up_proj's wrapper is
// inside down_proj's, which all cases with target_parameters have.
void add_of_tensor(const std::string& module, const at::Tensor& delta,
                   std::map<std::string, at::Tensor>& weights) {
  const bool up = module.ends_with("base_layer.");
  std::string folder = module.substr(0, module.rfind("experts.") + 8);
  if (const size_t mlp = folder.rfind("mlp."); !weights.contains(folder + "down_proj")) {
    folder.replace(mlp, 4, "block_sparse_moe.");
  }
  const std::string name = folder + (up ? "gate_up_proj" : "down_proj");
  const bool in_out = weights.contains(name + "_bias");  // gpt-oss
  at::Tensor& weight = weights.at(name);
  weight = weight + (in_out ? delta.transpose(1, 2) : delta);
}

// Forward of a model with weights W + scale B A; in 8 bits, with the term scale B A x.
PlainForward with_merged(PlainForward forward, double scale, bool in_out) {
  return [forward = std::move(forward), scale, in_out](const auto& all, const MicroBatch& batch,
                                                       const BlockContext& context) {
    auto merged = all;
    for (const auto& [name, a] : all) {
      if (!name.ends_with(kLoraA)) continue;
      const std::string module = name.substr(0, name.size() - kLoraA.size());
      const std::string name_of_b = module + std::string(kLoraB);
      const at::Tensor b = all.at(name_of_b) * scale;
      if (a.dim() == 3) {
        merged.erase(name), merged.erase(name_of_b);
        const bool whole = module.ends_with("experts.") || module.ends_with("base_layer.");
        (whole ? add_of_tensor : add_of_experts)(module, at::matmul(b, a), merged);
        continue;
      }
      if (context.fp8 != Fp8::kOff) {
        merged[name_of_b] = b;
        continue;
      }
      merged.erase(name), merged.erase(name_of_b);
      const at::Tensor delta = at::matmul(b, a);
      at::Tensor& weight = merged.at(module + "weight");
      weight = weight + (in_out ? delta.t() : delta);
    }
    return forward(merged, batch, context);
  };
}

ModelSpec with_adapters(const FuzzCase& c, ModelSpec model) {
  LoraRule rule{.r = c.lora, .alpha = 2};
  if (c.lora_on != "default") rule.target_modules = {"all-linear"};
  const bool of_experts = has_experts(c) && !(c.model == "glm4_moe" && c.layers == 1);
  if (c.lora_on == "down") rule.target_modules.clear();
  if (of_experts && (c.lora_on == "tensors" || c.lora_on == "down")) {
    rule.target_parameters = {"experts.down_proj"};
    if (c.lora_on == "tensors") rule.target_parameters.emplace_back("mlp.experts.gate_up_proj");
  }
  if (c.lora_on == "all+norm") rule.modules_to_save = {is_rotary(c) ? "model.norm" : "ln_f"};
  return add_lora(std::move(model), rule);
}

FuzzModel with_tokens(const FuzzCase& c, ModelSpec model, PlainForward forward) {
  FuzzModel result{.model = std::move(model), .gives_scores = true};
  result.forward = std::move(forward);
  if (c.lora > 0) {
    result.model = with_adapters(c, std::move(result.model));
    const double scale = 2.0 / static_cast<double>(c.lora);
    result.forward = with_merged(std::move(result.forward), scale, c.model == "gpt2");
  }
  result.seeds = std::make_shared<SeedLog>();
  std::vector<BlockBuilder>& blocks = result.model.blocks;
  blocks.back().build = [build = blocks.back().build,
                         seeds = result.seeds](const BuildContext& context) {
    return std::make_unique<NotingHead>(build(context), seeds);
  };
  if (c.fused) result.model = with_fused_layers(std::move(result.model));
  result.batch = [vocabulary = c.vocabulary, padded = c.padded, packed = c.packed,
                  supervised_only = c.supervised_only](int64_t rows, int64_t length,
                                                       uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    MicroBatch batch;
    batch.input_ids = at::randint(vocabulary, {rows, length}, generator, at::kLong);
    batch.labels = at::randint(vocabulary, {rows, length}, generator, at::kLong);
    batch.labels.masked_fill_(at::rand({rows, length}, generator).lt(0.4), kIgnoredLabel);
    if (packed) {
      batch.packed = make_packed_rows(random_lengths(rows, length, seed), length);
      const at::Tensor& positions = batch.packed.positions;
      const auto as_packed = [&](const at::Tensor& tokens) {
        return tokens.flatten().narrow(0, 0, positions.numel()).view_as(positions);
      };
      batch.input_ids = as_packed(batch.input_ids);
      batch.labels = as_packed(batch.labels);
      // No causal query precedes padding that it sees, so the plain forward needs no mask.
    } else if (padded) {
      const at::Tensor ends = at::randint(1, length + 1, {rows, 1}, generator, at::kLong);
      batch.attention_mask = at::arange(length).unsqueeze(0).lt(ends);
      batch.labels.masked_fill_(batch.attention_mask.logical_not(), kIgnoredLabel);
    }
    if (supervised_only) choose_head_positions(batch, 1);
    return batch;
  };
  return result;
}

FuzzModel build_bloom(const FuzzCase& c) {
  DecoderConfig config = config_of(c);
  config.residual_dropout = c.hidden_dropout;
  return with_tokens(c, causal(config), plain_bloom(config, c.seed));
}

FuzzModel build_gpt2(const FuzzCase& c) {
  DecoderConfig config = config_of(c);
  config.inner = 2 * c.hidden;
  config.max_positions = 8;
  config.embedding_dropout = config.residual_dropout = c.hidden_dropout;
  return with_tokens(c, causal(config), plain_gpt2(config, c.seed));
}

// In 16 bits every token takes all experts: where probabilities are almost equal, roundings choose.
void add_experts(const FuzzCase& c, DecoderConfig& config) {
  config.experts = 2 * c.heads;  // expert axes of two ranks divide them
  config.experts_per_token =
      c.parallel.precision.parameter == at::kFloat ? c.key_heads : config.experts;
  config.expert_inner = config.inner;
  if (c.model == "qwen3_moe" && c.layers > 2) config.dense_layers = {1};
  if (config.shared_inner > 0) config.shared_inner = 2 * config.inner;
  if (c.model == "glm4_moe") {
    config.dense_layers = {0};
    config.query_key_norm = c.layers % 2 == 0;
    config.routing_scale = 1.5;
    config.rotary_share = config.head_size() % 4 == 0 ? 0.5 : 1;
  }
  if (c.model == "gpt_oss") config.rotary = {};  // the plain model's
}

// Llama, Mistral, Qwen, and families with experts.
FuzzModel build_rotary(const FuzzCase& c) {
  DecoderConfig config = config_of(c);
  config.key_heads = c.key_heads;
  config.head_dim = c.head_dim;
  config.inner = 2 * c.hidden;
  for (int64_t layer = 0; c.window > 0 && layer < c.layers; ++layer) {
    config.windows.push_back(
        c.model.starts_with("mi") || c.model == "qwen3_moe" || layer % 2 == 0 ? c.window : 0);
  }
  if (has_experts(c)) add_experts(c, config);
  config.router_aux_loss_coef = c.balance_loss;
  config.router_z_loss_coef = c.z_loss;
  return with_tokens(c, causal(config), plain_llama(config, c.seed));
}

void draw(Random& random, FuzzCase& c) {
  c.vocabulary = draw_from(random, {11, 16, 29, 37});
  c.heads = draw_from(random, {2, 4, 6});
  c.key_heads = c.heads / draw_from(random, {1, 2});
  c.hidden = c.heads * draw_from(random, {2, 4});
  c.layers =
      random() % 8 == 0 ? 6 + static_cast<int64_t>(random() % 8) : draw_from(random, {1, 2, 3, 4});
  c.tie = random() % 2 == 0 ? "first" : "none";
  if (!is_rotary(c)) c.hidden_dropout = draw_from<double>(random, {0, 0, 0.1, 0.5});
  const bool own_size = c.model.starts_with("qwen3") || c.model == "glm4_moe";
  if (is_rotary(c)) c.head_dim = own_size ? draw_from(random, {2, 4, 6}) : 0;
  if (is_rotary(c) && c.model != "llama" && c.model != "olmoe" && c.model != "glm4_moe")
    c.window = draw_from(random, {0, 1, 2, 3, 5});
  c.attention_dropout = draw_from<double>(random, {0, 0, 0.1, 0.5});
  if (random() % 3 == 0) {
    c.lora = draw_from(random, {1, 3});
    c.lora_on = draw_from<std::string>(random, {"default", "all", "all+norm"});
    if (has_experts(c) && random() % 2 == 0) {
      c.lora_on = draw_from<std::string>(random, {"tensors", "down"});
    }
  }
  if (has_experts(c) && c.model != "glm4_moe") {  // sigmoids have no losses
    c.balance_loss = draw_from<double>(random, {0, 0.5});
    c.z_loss = draw_from<double>(random, {0, 0.1});
  }
  c.fused = random() % 2 == 0;
  c.packed = random() % 3 == 0;
  c.padded = !c.packed && random() % 2 == 0;
  c.supervised_only = random() % 2 == 0;
  c.blocks = "-";
}

std::vector<FuzzCase> smaller(const FuzzCase& c) {
  std::vector<FuzzCase> cases;
  for (int64_t layers : {int64_t{1}, c.layers / 2, c.layers - 1}) {
    if (layers < 1 || layers == c.layers) continue;
    cases.push_back(c);
    cases.back().layers = layers;
  }
  if (c.lora > 0) {
    cases.push_back(c);
    cases.back().lora = 0, cases.back().lora_on = "default";
    cases.back().parallel.precision.frozen = FrozenDtype::kSame;
  }
  if (c.balance_loss > 0 || c.z_loss > 0) {
    cases.push_back(c);
    cases.back().balance_loss = cases.back().z_loss = 0;
  }
  if (c.window > 0) {
    cases.push_back(c);
    cases.back().window = 0;
  }
  if (c.hidden > 4) {
    cases.push_back(c);
    cases.back().heads = cases.back().key_heads = 2;
    cases.back().hidden = 4;
  }
  return cases;
}

FuzzFamily family_of(FuzzModel (*build)(const FuzzCase&)) {
  return {.draw = draw,
          .build = build,
          .smaller = smaller,
          .tensor_axis = true,
          .sequence_parallel = true,
          .shared_vocabulary = true,
          .context_axis = true,
          .expert_axis = true,
          .fp8 = true};
}

FuzzFamily without_tensor_axis() {
  FuzzFamily family = family_of(build_rotary);
  family.tensor_axis = family.sequence_parallel = false;
  return family;
}

}  // namespace

FuzzFamilies language_model_families() {
  return {{"bloom", family_of(build_bloom)},     {"gpt2", family_of(build_gpt2)},
          {"llama", family_of(build_rotary)},    {"mistral", family_of(build_rotary)},
          {"qwen2", family_of(build_rotary)},    {"qwen3", family_of(build_rotary)},
          {"gpt_oss", without_tensor_axis()},    {"mixtral", family_of(build_rotary)},
          {"olmoe", family_of(build_rotary)},    {"qwen3_moe", family_of(build_rotary)},
          {"glm4_moe", family_of(build_rotary)}, {"qwen2_moe", family_of(build_rotary)}};
}

}  // namespace tessera::testing
