// SPDX-License-Identifier: MIT
#include "tessera/models/decoder_config.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
namespace {

// Limit of vocabulary and hidden size: products fit 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 24;
constexpr int64_t kMaxLayers = int64_t{1} << 16;  // each layer is an object

// In floating point, which cannot overflow; includes an untied head.
double parameters_of(const DecoderConfig& c) {
  const auto hidden = static_cast<double>(c.hidden), inner = static_cast<double>(c.inner_size()),
             vocabulary = static_cast<double>(c.vocabulary),
             width = static_cast<double>(c.heads) * static_cast<double>(c.head_size()),
             key_width =
                 static_cast<double>(c.key_head_count()) * static_cast<double>(c.head_size()),
             experts = static_cast<double>(c.experts);
  const double layer = 2 * hidden * (width + key_width) + (c.gated ? 3 : 2) * hidden * inner +
                       8 * hidden + 2 * width + 2 * key_width + 2 * inner +
                       experts * hidden * (3 * static_cast<double>(c.expert_inner) + 1) +
                       3 * hidden * static_cast<double>(c.shared_inner) + hidden;
  const auto tables = vocabulary * (c.tied_head ? 1 : 2) + static_cast<double>(c.max_positions) +
                      static_cast<double>(c.labels.size()) + 4;
  return tables * hidden + static_cast<double>(c.layers) * layer;
}

}  // namespace

bool DecoderConfig::has_experts(size_t layer) const {
  return experts > 0 && !std::ranges::binary_search(dense_layers, static_cast<int64_t>(layer));
}

void DecoderConfig::validate() const {
  const auto require = [&](bool good, const auto&... parts) {
    check(good, ErrorCode::kInvalidArgument, "model ", name, ": ", parts...);
  };
  const auto in_range = [&](const char* what, int64_t value, int64_t most) {
    require(value >= 1 && value <= most, what, " must be between 1 and ", most, ", not ", value);
  };
  in_range("vocabulary", vocabulary, kMaxSize);
  in_range("hidden size", hidden, kMaxSize);
  in_range("number of layers", layers, kMaxLayers);
  in_range("number of heads", heads, kMaxSize);
  require(initializer_range >= 0 && initializer_range < 100,
          "initializer_range must not be negative, found ", initializer_range);
  require(key_heads >= 0 && heads % key_head_count() == 0, "the number of heads ", heads,
          " is not a multiple of ", key_heads, " key and value heads");
  require(head_dim > 0 || (head_dim == 0 && hidden % heads == 0), "hidden size ", hidden,
          " is not a multiple of ", heads, " heads");
  require(inner >= 0 && inner_size() <= 4 * kMaxSize && head_size() <= kMaxSize,
          "the inner size and the head dimension must be positive, found ", inner, " and ",
          head_dim);
  require(epsilon > 0 && epsilon < 1, norm == Norm::kRms ? "rms_norm_eps" : "layer_norm_epsilon",
          " must be between 0 and 1, not ", epsilon);
  require(windows.empty() || (static_cast<int64_t>(windows.size()) == layers &&
                              std::ranges::all_of(windows, [](int64_t w) { return w >= 0; })),
          "attention windows must be one for each of ", layers, " layers, none negative");
  require(positions == Positions::kRotary || windows.empty(),
          "attention windows need rotary positions");
  require(!query_key_norm || positions == Positions::kRotary,
          "norms of queries and keys need rotary positions");
  require(positions == Positions::kRotary || !attention_sinks,
          "sinks of attention need rotary positions");
  require(experts > 0 || !clamped_experts, "clamped experts need experts");
  require(experts > 0 || (!sigmoid_routing && shared_inner == 0),
          "sigmoid routing and shared experts need experts");
  require(shared_inner > 0 || !shared_gate, "a gate of shared experts needs them");
  require(query_key_norm || !query_key_norm_of_all_heads,
          "a norm of all heads together is a norm of queries and keys");
  constexpr int64_t kMostExperts = 1024;  // of LibTorch's grouped products
  require(experts >= 0 && experts <= kMostExperts, "the number of experts must be between 0 and ",
          kMostExperts, ", not ", experts);
  if (experts > 0) {
    in_range("number of experts per token", experts_per_token, experts);
    in_range("inner size of an expert", expert_inner, 4 * kMaxSize);
    require(gated && !mlp_bias && !residual_post_layernorm,
            "experts are gated, have no biases, and residuals start before the norms");
    require(shared_inner >= 0 && shared_inner <= 4 * kMaxSize,
            "the inner size of shared experts must not be negative, found ", shared_inner);
    require(routing_scale > 0 && routing_scale < 1e6,
            "the factor of experts' weights must be positive, found ", routing_scale);
    require(!sigmoid_routing || (router_aux_loss_coef == 0 && router_z_loss_coef == 0),
            "losses of routers (--router_aux_loss_coef, --router_z_loss_coef) are not built for "
            "sigmoid routing, whose experts a bias balances");
    require(!clamped_experts || (!sigmoid_routing && routing_scale == 1 && shared_inner == 0),
            "clamped experts have softmax routing and no shared experts");
    for (const double factor : {router_aux_loss_coef, router_z_loss_coef}) {
      require(factor >= 0 && factor < 1e6,
              "factors of routers' losses must not be negative, found ", factor);
    }
    const auto in_model = [&](int64_t layer) { return layer >= 0 && layer < layers; };
    require(std::ranges::is_sorted(dense_layers) && std::ranges::all_of(dense_layers, in_model),
            "dense layers must be increasing numbers from 0 to ", layers - 1);
  }
  require(max_positions >= (positions == Positions::kLearned ? 1 : 0) && trained_positions >= 1,
          "the number of positions must be positive, found ", max_positions, " and ",
          trained_positions);
  for (const double dropout : {embedding_dropout, attention_dropout, residual_dropout}) {
    require(dropout >= 0 && dropout < 1, "dropout must be a probability below 1, not ", dropout);
  }
  constexpr double kMost = 0x1p58;  // bytes of values and moments fit 63 bits
  const double parameters = parameters_of(*this);
  require(parameters < kMost, "its sizes make ", parameters, " parameters; at most ", kMost,
          " can be counted");
  if (positions != Positions::kRotary) return;
  using Kind = ops::RotaryOptions::Kind;
  require(head_size() % 2 == 0, "the head dimension must be even, not ", head_size());
  require(
      rotary_share > 0 && rotary_share <= 1 && rotary_columns() > 0 && rotary_columns() % 2 == 0,
      "partial_rotary_factor ", rotary_share, " must leave an even number of a head's ",
      head_size(), " columns, and at most all");
  require(rotary.theta > 0 && rotary.factor > 0, "rope_theta and factor must be positive, found ",
          rotary.theta, " and ", rotary.factor);
  require(
      rotary.kind != Kind::kLlama3 || (rotary.low_frequency_factor > 0 &&
                                       rotary.high_frequency_factor > rotary.low_frequency_factor),
      "llama3 rotary scaling needs a positive low_freq_factor below high_freq_factor, found ",
      rotary.low_frequency_factor, " and ", rotary.high_frequency_factor);
  require(rotary.kind != Kind::kYarn || (rotary.theta > 1 && rotary.beta_fast > 0 &&
                                         rotary.beta_slow > 0 && rotary.magnitude > 0),
          "yarn rotary scaling needs rope_theta above 1, positive beta_fast and beta_slow and a "
          "positive attention_factor, found ",
          rotary.theta, ", ", rotary.beta_fast, ", ", rotary.beta_slow, " and ", rotary.magnitude);
}

}  // namespace tessera
