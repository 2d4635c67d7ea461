// SPDX-License-Identifier: MIT
// A small GPT with tied embedding and head: as one module, and as blocks.
#include "stranger.h"

namespace {

using namespace strangers;
constexpr int64_t kWords = 11, kWidth = 8, kLength = 5;

struct EmbedImpl : nn::Cloneable<EmbedImpl> {
  EmbedImpl() { reset(); }
  void reset() override {
    wte = register_module("wte", nn::Embedding(kWords, kWidth));
    wpe = register_module("wpe", nn::Embedding(kLength, kWidth));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return wte(tokens) + wpe(torch::arange(tokens.size(1)));
  }
  nn::Embedding wte{nullptr}, wpe{nullptr};
};
TORCH_MODULE(Embed);

struct LayerImpl : nn::Cloneable<LayerImpl> {
  LayerImpl() { reset(); }
  void reset() override {
    ln_1 = register_module("ln_1", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
    proj = register_module("proj", nn::Linear(kWidth, kWidth));
    ln_2 = register_module("ln_2", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    mlp = register_module("mlp", nn::Sequential(nn::Linear(kWidth, 4 * kWidth), nn::GELU(),
                                                nn::Linear(4 * kWidth, kWidth)));
  }
  at::Tensor forward(at::Tensor x) {
    const auto parts = qkv(ln_1(x)).view({x.size(0), x.size(1), 3, 2, kWidth / 2}).unbind(2);
    const at::Tensor q = parts[0].transpose(1, 2), k = parts[1].transpose(1, 2);
    const at::Tensor mixed = at::scaled_dot_product_attention(q, k, parts[2].transpose(1, 2), {},
                                                              /*dropout_p=*/0, /*is_causal=*/true);
    x = x + proj(mixed.transpose(1, 2).reshape(x.sizes()));
    return x + mlp->forward(ln_2(x));
  }
  nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  nn::Linear qkv{nullptr}, proj{nullptr};
  nn::Sequential mlp{nullptr};
};
TORCH_MODULE(Layer);

// Children are named like the blocks of a chain.
struct NanoGpt : nn::Cloneable<NanoGpt> {
  NanoGpt() { reset(); }
  void reset() override {
    embed = register_module("0", Embed());
    first = register_module("1", Layer());
    second = register_module("2", Layer());
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return at::linear(second(first(embed(tokens))), embed->wte->weight);
  }
  Embed embed{nullptr};
  Layer first{nullptr}, second{nullptr};
};

at::Tensor token_loss(const at::Tensor& scores, const MicroBatch& batch) {
  return F::cross_entropy(scores.flatten(0, 1), batch.labels.flatten());
}

at::Tensor mean(NanoGpt& net, const MicroBatch& batch) {
  return token_loss(net.forward(batch.input_ids), batch);
}

std::vector<MicroBatch> sentences() {
  Draw draw(5);
  std::vector<MicroBatch> steps;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor ids = draw.integers(kWords, {12, kLength});
    at::Tensor labels = ids.roll(-1, 1);
    labels.select(1, kLength - 1).fill_(-100);
    labels.narrow(0, step, 1).slice(1, 1).fill_(-100);  // rows of different lengths
    steps.push_back(make_micro_batch(ids, labels));
  }
  return steps;
}

const Registered whole(program<NanoGpt>(
    "nano_gpt",
    {.steps = sentences(), .mean = mean, .model = [](const std::shared_ptr<NanoGpt>& net) {
       return from_module(net, token_loss, {.reduction = LossReduction::kMean});
     }}));

const Registered blocks(program<NanoGpt>(
    "nano_gpt_blocks", {.steps = sentences(),
                        .mean = mean,
                        .model =
                            [](const std::shared_ptr<NanoGpt>& net) {
                              const nn::Linear head(nn::LinearOptions(kWidth, kWords).bias(false));
                              return tie(chain({block_of(net->embed), block_of(net->first),
                                                block_of(net->second), block_of(head)},
                                               token_loss, {.reduction = LossReduction::kMean}),
                                         "0.wte.weight", "3.weight");
                            },
                        .blocks = true}));

}  // namespace
