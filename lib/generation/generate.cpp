// SPDX-License-Identifier: MIT
#include "tessera/generation/generate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "backends/common/device_graph_runner.h"
#include "lib/core/hash.h"
#include "lib/core/trace.h"
#include "lib/generation/generate_by.h"
#include "lib/generation/row_batch.h"
#include "tessera/core/async_scalars.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using Prompts = std::span<const std::vector<int64_t>>;

constexpr int64_t kWidthMultiple = 64;  // on GPUs: keeps the number of matrix sizes small
constexpr int64_t kTokensBetweenLooks = 4;

uint64_t hash_of(Prompts prompts, const GenerationOptions& options) {
  Xxh3Stream stream;
  const auto add = [&](const auto& value) { stream.update(&value, sizeof(value)); };
  const auto add_ids = [&](const std::vector<int64_t>& ids) {
    add(ids.size());
    stream.update(ids.data(), ids.size() * sizeof(int64_t));
  };
  for (const auto& prompt : prompts) add_ids(prompt);
  add_ids(options.end_tokens);
  const SamplingOptions sampling = options.sampling.value_or(SamplingOptions{});
  add_ids({options.max_new_tokens, options.without_end_token, options.sampling.has_value(),
           sampling.top_k, static_cast<int64_t>(sampling.seed), options.max_positions,
           options.vocabulary, options.batch_size, options.fill_token, options.use_cache});
  add(sampling.temperature);
  add(sampling.top_p);
  return stream.digest64();
}

// True if every rank's blocks can continue cached rows. Throws if the ranks were given different
// work.
bool agree(const Strategy& strategy, Communicator& world, uint64_t hash) {
  const auto mine = static_cast<int64_t>(hash);
  const at::Tensor least =
      at::tensor({mine, ~mine, int64_t{strategy.supports_kv_cache()}}, at::kLong)
          .to(world.device());
  world.all_reduce(least, ReduceOp::kMin).wait();
  const at::Tensor known = least.cpu();
  const int64_t* value = known.const_data_ptr<int64_t>();
  check(value[0] == ~value[1], ErrorCode::kInvalidArgument,
        "generate: ranks were given different prompts or options; all ranks work on all prompts, "
        "so give every one the same");
  return value[2] != 0;
}

void check_options(const GenerationOptions& options) {
  const auto positive = [](int64_t value, const char* what) {
    check(value > 0, ErrorCode::kInvalidArgument, "generate: ", what, " is ", value,
          "; expected a positive number");
  };
  positive(options.max_new_tokens, "max_new_tokens");
  positive(options.batch_size, "batch_size");
  check(!options.end_tokens.empty() || options.without_end_token, ErrorCode::kInvalidArgument,
        "generate: no end token, so no row would know its end; name the model's (eos_token_id), or "
        "set without_end_token to write max_new_tokens in every row");
  if (!options.sampling) return;
  const auto& [temperature, top_k, top_p, seed] = *options.sampling;
  check(temperature > 0 && std::isfinite(temperature), ErrorCode::kInvalidArgument,
        "generate: temperature is ", temperature,
        "; expected a positive number (without sampling the best token is taken)");
  check(top_k >= 0, ErrorCode::kInvalidArgument, "generate: top_k is ", top_k,
        "; expected a number of tokens, or 0 for all");
  check(top_p > 0 && top_p <= 1, ErrorCode::kInvalidArgument, "generate: top_p is ", top_p,
        "; expected more than 0 and at most 1");
}

void check_prompts(Prompts prompts, const GenerationOptions& options) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(prompts[i].size());
    check(length > 0, ErrorCode::kInvalidArgument, "generate: prompt ", i,
          " is empty; give it at least one token, e.g. the model's bos_token");
    check(options.max_positions == 0 || length < options.max_positions, ErrorCode::kInvalidArgument,
          "generate: prompt ", i, " has ", length, " tokens, but the model has ",
          options.max_positions, " positions for prompt and answer; shorten it");
    if (options.vocabulary == 0) continue;
    const auto wrong = std::ranges::find_if(
        prompts[i], [&](int64_t id) { return id < 0 || id >= options.vocabulary; });
    check(wrong == prompts[i].end(), ErrorCode::kInvalidArgument, "generate: prompt ", i,
          " holds the id ", wrong == prompts[i].end() ? 0 : *wrong,
          "; the vocabulary has ids 0 to ", options.vocabulary - 1);
  }
}

// Batches of all ranks: prompts of similar length, longest first, so that memory suffices for all
// if it does for the first.
class PromptBatches {
 public:
  PromptBatches(Prompts prompts, const GenerationOptions& options, const DeviceMesh& mesh)
      : prompts_(prompts),
        options_(options),
        data_(mesh.axis(Axis::kData)),
        together_(static_cast<size_t>(mesh.extent(Axis::kPipeline))),
        order_(prompts.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::ranges::stable_sort(order_, std::greater(), [&](size_t i) { return prompts[i].size(); });
    const size_t parts = static_cast<size_t>(data_.size()) * together_;
    rows_ = std::min(static_cast<size_t>(options.batch_size), (order_.size() + parts - 1) / parts);
    waves_ = (order_.size() + rows_ * parts - 1) / (rows_ * parts);
    for (const auto& prompt : prompts) {
      const auto length = static_cast<int64_t>(prompt.size());
      const int64_t total = length + options.max_new_tokens;
      capacity_ = std::max(
          capacity_, options.max_positions == 0 ? total : std::min(total, options.max_positions));
    }
    capacity_ = std::max(capacity_, width(0));
  }

  size_t waves() const { return waves_; }
  size_t together() const { return together_; }  // batches of a wave: one for each stage
  int64_t rows() const { return static_cast<int64_t>(rows_); }
  int64_t capacity() const { return capacity_; }

  std::vector<size_t> places(size_t wave, size_t batch, int data_rank) const {
    const size_t number =
        (wave * static_cast<size_t>(data_.size()) + static_cast<size_t>(data_rank)) * together_ +
        batch;
    const size_t begin = std::min(number * rows_, order_.size());
    const size_t end = std::min(begin + rows_, order_.size());
    return {order_.begin() + static_cast<ptrdiff_t>(begin),
            order_.begin() + static_cast<ptrdiff_t>(end)};
  }
  std::vector<size_t> places(size_t wave, size_t batch) const {
    return places(wave, batch, data_.rank());
  }
  RowBatch::Shape shape() const {
    return {.rows = rows(),
            .capacity = capacity_,
            .tokens = options_.max_new_tokens,
            .device = data_.device()};
  }
  // Longest prompt of the wave over all ranks, rounded up.
  int64_t width(size_t wave) const {
    const size_t first = wave * static_cast<size_t>(data_.size()) * together_ * rows_;
    const auto longest = static_cast<int64_t>(prompts_[order_[first]].size());
    if (data_.device().is_cpu()) return longest;
    const int64_t width = (longest + kWidthMultiple - 1) / kWidthMultiple * kWidthMultiple;
    return options_.max_positions == 0 ? width : std::min(width, options_.max_positions);
  }

 private:
  Prompts prompts_;
  const GenerationOptions& options_;
  Communicator& data_;
  size_t together_, rows_ = 0, waves_ = 0;
  std::vector<size_t> order_;
  int64_t capacity_ = 0;
};

// Detects, at the same token on all ranks, that no rank has an unfinished row. On a GPU some tokens
// later, so that the host need not wait.
class End {
 public:
  explicit End(Communicator& world)
      : world_(world), interval_(world.device().is_cpu() ? 1 : kTokensBetweenLooks) {}

  bool reached(int64_t step, const std::vector<RowBatch>& batches) {
    if ((step + 1) % interval_ != 0) return false;
    if (world_.device().is_cpu()) {
      look(batches);
      return ended();
    }
    if (ended()) return true;
    look(batches);
    return false;
  }

 private:
  bool ended() { return unfinished_ && unfinished_->read().front() == 0; }
  void look(const std::vector<RowBatch>& batches) {
    at::Tensor sum = batches.front().unfinished();
    for (size_t i = 1; i < batches.size(); ++i) sum = sum + batches[i].unfinished();
    world_.all_reduce(sum).wait();
    unfinished_.emplace(std::vector<at::Tensor>{sum});
  }

  Communicator& world_;
  int64_t interval_;
  std::optional<AsyncScalars> unfinished_;
};

void write(Strategy& strategy, Communicator& world, std::vector<RowBatch>& batches,
           int64_t tokens) {
  End end(world);
  const ScoreSelection choose = [&](const at::Tensor& scores, size_t i) {
    return batches[i].choose(scores);
  };
  for (int64_t step = 0; step < tokens; ++step) {
    const TraceRange range(step == 0 ? "prefill" : "decode");
    std::vector<MicroBatch> next;
    for (const RowBatch& batch : batches) next.push_back(batch.next());
    const std::vector<at::Tensor> chosen = strategy.predict(next, choose);
    for (size_t i = 0; i < batches.size(); ++i) batches[i].take(chosen[i]);
    if (end.reached(step, batches)) return;
  }
}

// results: this rank's [batches * rows, tokens + 2]; every rank gets all data ranks' rows.
std::vector<GeneratedRow> gather(const at::Tensor& results, const PromptBatches& prompt_batches,
                                 Communicator& data, size_t prompts) {
  const at::Tensor all =
      at::empty({data.size(), results.size(0), results.size(1)}, results.options());
  data.all_gather(all, results).wait();
  const at::Tensor known = all.cpu();
  std::vector<GeneratedRow> rows(prompts);
  for (int rank = 0; rank < data.size(); ++rank) {
    for (size_t wave = 0; wave < prompt_batches.waves(); ++wave) {
      for (size_t batch = 0; batch < prompt_batches.together(); ++batch) {
        const auto first =
            static_cast<int64_t>(wave * prompt_batches.together() + batch) * prompt_batches.rows();
        const std::vector<size_t> places = prompt_batches.places(wave, batch, rank);
        for (size_t i = 0; i < places.size(); ++i) {
          const int64_t* values =
              known[rank][first + static_cast<int64_t>(i)].const_data_ptr<int64_t>();
          rows[places[i]] = {{values + 2, values + 2 + values[0]},
                             values[1] != 0 ? FinishReason::kEndToken : FinishReason::kLength};
        }
      }
    }
  }
  return rows;
}

}  // namespace

GenerationShape generation_shape(const DeviceMesh& mesh, Prompts prompts,
                                 const GenerationOptions& options) {
  const PromptBatches prompt_batches(prompts, options, mesh);
  return {.batches = static_cast<int64_t>(prompt_batches.together()),
          .rows = prompt_batches.rows(),
          .width = prompt_batches.width(0),
          .capacity = prompt_batches.capacity()};
}

std::vector<GeneratedRow> generate(Strategy& strategy, const DeviceMesh& mesh, Prompts prompts,
                                   const GenerationOptions& options) {
  const bool on_cpu = mesh.world().device().is_cpu();
  return generate_by(on_cpu ? Beginnings::kPadded : Beginnings::kPacked, strategy, mesh, prompts,
                     options);
}

std::vector<GeneratedRow> generate_by(Beginnings beginnings, Strategy& strategy,
                                      const DeviceMesh& mesh, Prompts prompts,
                                      const GenerationOptions& options) {
  const at::NoGradGuard no_grad;
  const bool continues = agree(strategy, mesh.world(), hash_of(prompts, options));
  check_options(options);
  check_prompts(prompts, options);
  if (prompts.empty()) return {};
  const PromptBatches prompt_batches(prompts, options, mesh);
  const int64_t decoded =
      static_cast<int64_t>(prompt_batches.waves()) * (options.max_new_tokens - 1);
  std::vector<std::shared_ptr<KeyValueCache>> caches(prompt_batches.together());
  if (continues && options.use_cache) {
    for (auto& cache : caches) {
      cache = std::make_shared<KeyValueCache>(prompt_batches.rows(), prompt_batches.capacity());
      cache->set_repeated(std::make_shared<DeviceGraphRunner>(mesh.world().device(), decoded));
    }
  }
  std::vector<RowBatch> batches;
  for (const auto& cache : caches) {
    batches.emplace_back(prompt_batches.shape(), options, cache);
    if (beginnings == Beginnings::kPacked) batches.back().pack_prompts();
  }
  std::vector<at::Tensor> results;
  for (size_t wave = 0; wave < prompt_batches.waves(); ++wave) {
    for (size_t batch = 0; batch < batches.size(); ++batch) {
      batches[batch].begin(prompts, prompt_batches.places(wave, batch), prompt_batches.width(wave));
    }
    write(strategy, mesh.world(), batches, options.max_new_tokens);
    for (const RowBatch& batch : batches) results.push_back(batch.result());
  }
  return gather(at::cat(results), prompt_batches, mesh.axis(Axis::kData), prompts.size());
}

}  // namespace tessera
