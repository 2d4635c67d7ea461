// SPDX-License-Identifier: MIT
// A user's model on a tensor axis, made of the public layers; see docs/library/own-model.md.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "tessera/model/tensor_parallel.h"
#include "tests/parity/rows.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kOwnVocabulary = 29, kHidden = 12;

// Every rank draws whole weights from the block's seed; the layers keep their shards.
class Draw {
 public:
  Draw(const BuildContext& context, size_t block)
      : generator_(at::make_generator<at::CPUGeneratorImpl>(block_seed(context.seed, block))) {}
  at::Tensor operator()(at::IntArrayRef shape) {
    return at::randn(shape, generator_, at::kFloat) * 0.3;
  }

 private:
  at::Generator generator_;
};

class Embedding : public Block {
 public:
  explicit Embedding(const BuildContext& context)
      : table_(context, "table", Draw(context, 0)({kOwnVocabulary, kHidden})) {}
  at::Tensor forward(const at::Tensor&, const MicroBatch& batch, const BlockContext&) override {
    return table_.forward(batch.input_ids);
  }
  std::vector<Parameter> parameters() override { return table_.parameters(); }

 private:
  VocabParallelEmbedding table_;
};

class FeedForward : public Block {
 public:
  FeedForward(const BuildContext& context, size_t index)
      : FeedForward(context, Draw(context, index)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext&) override {
    const at::Tensor scaled = hidden * scale_.tensor;
    return hidden + down_.forward(up_.forward(scaled, batch.input_ids.sizes()).relu());
  }
  std::vector<Parameter> parameters() override {
    std::vector<Parameter> all{scale_};
    for (const auto* layer : {&up_.parameters(), &down_.parameters()}) {
      all.insert(all.end(), layer->begin(), layer->end());
    }
    return all;
  }

 private:
  FeedForward(const BuildContext& context, Draw draw)
      : scale_(cut_parameter("scale", draw({kHidden}) + 1, false, {}, TensorAxis(context))),
        up_(context, "up", draw({4 * kHidden, kHidden}), draw({4 * kHidden})),
        down_(context, "down", draw({kHidden, 4 * kHidden}), draw({kHidden})) {}

  Parameter scale_;
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

class Loss : public Block {
 public:
  explicit Loss(const BuildContext& context)
      : axis_(context),
        weight_(cut_parameter("weight", Draw(context, 9)({kOwnVocabulary, kHidden}), true,
                              {.dim = 0, .padded = true}, axis_)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    return vocab_parallel_cross_entropy(
               hidden, weight_.tensor,
               {.labels = batch.labels, .positions = batch.head_positions, .chunk_rows = 5},
               context.loss_gradient, kOwnVocabulary, axis_)
        .reshape({1});
  }
  std::vector<Parameter> parameters() override { return {weight_}; }

 private:
  TensorAxis axis_;
  Parameter weight_;
};

ModelSpec own_model() {
  ModelSpec model;
  model.name = "own";
  model.tensor_divisor = 4 * kHidden;
  model.blocks.push_back({"embedding", [](const BuildContext& context) {
                            return std::make_unique<Embedding>(context);
                          }});
  for (size_t i = 1; i <= 2; ++i) {
    model.blocks.push_back({"layer." + std::to_string(i), [i](const BuildContext& context) {
                              return std::make_unique<FeedForward>(context, i);
                            }});
  }
  model.blocks.push_back(
      {"loss", [](const BuildContext& context) { return std::make_unique<Loss>(context); }});
  return model;
}

}  // namespace

TEST_CASE("a model made of the public layers keeps its numbers on every tensor axis") {
  const ParityWork work =
      token_work(own_model(), {.vocabulary = kOwnVocabulary, .rows = 4, .sequence = 3});
  const RankRecord expected = single_run(work);
  CHECK(expected.evaluations.back().loss < expected.steps.front().loss);  // for the first batch
  for (const std::string strategy : {"ddp", "zero2", "zero3"}) {
    for (int tensor : {2, 3, 4}) {
      for (bool sequence_parallel : {false, true}) {
        ParityRow row = tensor_row(strategy, tensor == 4 ? 1 : 2, tensor);
        row.parallel.sequence_parallel = sequence_parallel;
        check_row(row, work, expected, 1e-5);
      }
    }
  }
}
