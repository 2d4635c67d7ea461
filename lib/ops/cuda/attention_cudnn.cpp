// SPDX-License-Identifier: MIT
// cuDNN's attention through cudnn-frontend. ALiBi is applied by score_mod: a per-column fp32 bias
// of cuDNN 9.19 has wrong gradients, and a 16-bit one loses precision.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cudnn/Handle.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include "lib/core/rounding.h"
#include "lib/ops/cuda/algorithm_store.h"
#include "lib/ops/cuda/attention_graph.h"
#include "tessera/core/error.h"

namespace tessera::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
namespace graph = cudnn_frontend::graph;
using Attributes = std::shared_ptr<graph::Tensor_attributes>;
using Sizes = std::vector<int64_t>;

enum Id : int64_t { kQ = 1, kK, kV, kO, kStats, kGradient, kDq, kDk, kDv, kSlopes, kFirstKeys };

Attributes tensor(graph::Graph& g, Id id, const Sizes& sizes, const Sizes& strides) {
  return g.tensor(graph::Tensor_attributes().set_uid(id).set_dim(sizes).set_stride(strides));
}

Attributes key_index(graph::Graph& g, const Attributes& scores) {
  const Attributes index = g.pointwise(scores, graph::Pointwise_attributes()
                                                   .set_mode(fe::PointwiseMode_t::GEN_INDEX)
                                                   .set_axis(3)
                                                   .set_compute_data_type(fe::DataType_t::INT32));
  index->set_data_type(fe::DataType_t::INT32);
  return index;
}

Attributes combine(graph::Graph& g, const Attributes& a, const Attributes& b,
                   fe::PointwiseMode_t mode) {
  return g.pointwise(a, b, graph::Pointwise_attributes().set_mode(mode));
}

// The score where the key is in the query's row (key >= first key), else -1e9 for the softmax.
Attributes within_row(graph::Graph& g, const Attributes& scores, const Attributes& key,
                      const Attributes& first_keys) {
  const Attributes visible = g.pointwise(key, first_keys,
                                         graph::Pointwise_attributes()
                                             .set_mode(fe::PointwiseMode_t::CMP_GE)
                                             .set_compute_data_type(fe::DataType_t::BOOLEAN));
  visible->set_data_type(fe::DataType_t::BOOLEAN);
  constexpr float kHidden = -1e9F;
  return g.pointwise(scores, g.tensor(kHidden), visible,
                     graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::BINARY_SELECT));
}

// The built graph of one direction and shape.
class AttentionGraph {
 public:
  AttentionGraph(const AttentionShape& shape, bool backward)
      : graph_(std::make_shared<graph::Graph>()) {
    graph::Graph& g = *graph_;
    g.set_io_data_type(shape.type == at::kHalf ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const int64_t batch = shape.batch, sequence = shape.sequence, heads = shape.heads, d = shape.d;
    const int64_t row = (heads + 2 * shape.key_heads) * d;
    const Sizes sizes{batch, heads, sequence, d}, key_sizes{batch, shape.key_heads, sequence, d};
    const Sizes inside{sequence * row, shape.by_head ? 3 * d : d, row, 1};
    const Sizes packed{sequence * heads * d, d, heads * d, 1};
    const Sizes stats_sizes{batch, heads, sequence, 1},
        stats_strides{heads * sequence, sequence, 1, 1};
    const Attributes q = tensor(g, kQ, sizes, inside), k = tensor(g, kK, key_sizes, inside),
                     v = tensor(g, kV, key_sizes, inside);
    Attributes slopes, first_keys;
    if (shape.alibi) {
      slopes = tensor(g, kSlopes, {1, heads, 1, 1}, {heads, 1, 1, 1});
      slopes->set_data_type(fe::DataType_t::FLOAT);
    }
    if (shape.packed) {
      first_keys = tensor(g, kFirstKeys, {batch, 1, sequence, 1}, {sequence, sequence, 1, 1});
      first_keys->set_data_type(fe::DataType_t::INT32);
    }
    // score + slope * key, then the masks. Softmax is invariant to the omitted slope * query.
    const auto modify = [=](std::shared_ptr<graph::Graph> inner, Attributes scores) {
      Attributes modified = scores;
      if (slopes) {
        const Attributes key = key_index(*inner, scores);
        const Attributes bias = combine(*inner, key, slopes, fe::PointwiseMode_t::MUL);
        modified = combine(*inner, scores, bias, fe::PointwiseMode_t::ADD);
      }
      if (first_keys)
        modified = within_row(*inner, modified, key_index(*inner, scores), first_keys);
      return graph::attn::score_modifiers::causal_mask(inner, modified);
    };
    const auto masked = [&](auto attributes) {
      attributes.set_attn_scale(shape.scale);
      if (slopes || first_keys) {
        attributes.set_score_mod(modify);
      } else {
        attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
            .set_diagonal_band_right_bound(0);
        if (shape.window > 0) attributes.set_diagonal_band_left_bound(int(shape.window));
      }
      return attributes;
    };
    const auto output = [](const Attributes& x, Id id, const Sizes& dim, const Sizes& strides) {
      x->set_output(true).set_uid(id).set_dim(dim).set_stride(strides);
    };
    if (!backward) {
      auto [o, stats] = g.sdpa(q, k, v, masked(graph::SDPA_attributes().set_generate_stats(true)));
      output(o, kO, sizes, packed);
      output(stats, kStats, stats_sizes, stats_strides);
      stats->set_data_type(fe::DataType_t::FLOAT);
    } else {
      const Attributes o = tensor(g, kO, sizes, packed),
                       gradient = tensor(g, kGradient, sizes, packed);
      const Attributes stats = tensor(g, kStats, stats_sizes, stats_strides);
      stats->set_data_type(fe::DataType_t::FLOAT);
      // No score_mod_bprop: the bias is additive, and hidden scores have probability 0.
      auto [dq, dk, dv] =
          g.sdpa_backward(q, k, v, o, gradient, stats,
                          masked(graph::SDPA_backward_attributes().set_deterministic_algorithm(
                              at::globalContext().deterministicAlgorithms())));
      output(dq, kDq, sizes, inside);
      output(dk, kDk, key_sizes, inside);
      output(dv, kDv, key_sizes, inside);
    }
    const cudnnHandle_t handle = at::native::getCudnnHandle();
    ok_ = good(g.validate()) && good(g.build_operation_graph(handle)) &&
          good(g.create_execution_plans({fe::HeurMode_t::A})) && good(g.check_support(handle)) &&
          good(g.build_plans(handle)) && good(g.get_workspace_size(workspace_bytes_));
  }

  bool ok() const { return ok_; }
  const std::string& message() const { return message_; }

  void run(std::unordered_map<int64_t, void*>& pointers) const {
    const at::Tensor workspace =
        at::empty({workspace_bytes_}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
    fe::error_t status =
        graph_->execute(at::native::getCudnnHandle(), pointers, workspace.data_ptr());
    check(status.is_good(), ErrorCode::kInternal, "cuDNN attention: ", status.get_message());
  }

 private:
  bool good(fe::error_t status) {
    if (!status.is_good()) message_ = status.get_message();
    return status.is_good();
  }

  std::shared_ptr<graph::Graph> graph_;
  int64_t workspace_bytes_ = 0;
  bool ok_ = false;
  std::string message_;
};

struct Pair {
  AttentionGraph forward, backward;
  explicit Pair(const AttentionShape& shape) : forward(shape, false), backward(shape, true) {}
};

std::unordered_map<int64_t, void*> common(const AttentionShape& shape, const AttentionPointers& p) {
  const int64_t bytes = shape.d * int64_t(at::elementSize(shape.type));
  // By head: q, k, v of one head are adjacent. Else: all heads' q, then k, then v.
  const int64_t first[] = {0, shape.by_head ? 1 : shape.heads,
                           shape.by_head ? 2 : shape.heads + shape.key_heads};
  const auto part = [&](const void* base, int index) {
    return const_cast<char*>(static_cast<const char*>(base)) + first[index] * bytes;
  };
  std::unordered_map<int64_t, void*> map{{kQ, part(p.qkv, 0)},
                                         {kK, part(p.qkv, 1)},
                                         {kV, part(p.qkv, 2)},
                                         {kO, p.output},
                                         {kStats, p.log_sum_exp}};
  if (p.slopes) map.emplace(kSlopes, const_cast<void*>(p.slopes));
  if (p.first_keys) map.emplace(kFirstKeys, const_cast<void*>(p.first_keys));
  if (p.dqkv) {
    map.emplace(kGradient, const_cast<void*>(p.gradient));
    map.emplace(kDq, part(p.dqkv, 0));
    map.emplace(kDk, part(p.dqkv, 1));
    map.emplace(kDv, part(p.dqkv, 2));
  }
  return map;
}

// Sequences of a batch computed by one graph.
struct Part {
  int64_t first, count;
  const Pair* pair;
};
using Parts = std::vector<Part>;

// Pointers to the part's sequences.
AttentionPointers part_of(const AttentionShape& shape, const AttentionPointers& whole,
                          const Part& part) {
  const int64_t bytes = int64_t(at::elementSize(shape.type)), tokens = part.first * shape.sequence;
  const auto from = [](const auto* base, int64_t offset) -> void* {
    return base ? const_cast<char*>(static_cast<const char*>(base)) + offset : nullptr;
  };
  const int64_t row = tokens * shape.heads * shape.d * bytes;
  const int64_t wide_row = tokens * (shape.heads + 2 * shape.key_heads) * shape.d * bytes;
  return {.qkv = from(whole.qkv, wide_row),
          .slopes = whole.slopes,
          .first_keys = from(whole.first_keys, tokens * int64_t(sizeof(int32_t))),
          .output = from(whole.output, row),
          .log_sum_exp = from(whole.log_sum_exp, tokens * shape.heads * int64_t(sizeof(float))),
          .gradient = from(whole.gradient, row),
          .dqkv = from(whole.dqkv, wide_row)};
}

// Runs both graphs on scratch memory, to load their kernels early: loading takes half a step.
// Skipped when memory is short.
void load_kernels(const AttentionShape& shape, const Pair& pair) {
  if (!pair.forward.ok() || !pair.backward.ok()) return;
  const int64_t tokens = shape.batch * shape.sequence, n = shape.heads * shape.d;
  const auto options = at::TensorOptions(at::kCUDA).dtype(shape.type);
  try {
    const at::Tensor qkv = at::zeros({2, tokens, n + 2 * shape.key_heads * shape.d}, options);
    const at::Tensor rows = at::zeros({2, tokens, n}, options);
    const at::Tensor slopes = at::zeros({shape.heads}, options.dtype(at::kFloat));
    const at::Tensor first_keys = at::zeros({tokens}, options.dtype(at::kInt));
    const at::Tensor sums = at::zeros({shape.heads * tokens}, options.dtype(at::kFloat));
    AttentionPointers pointers{.qkv = qkv[0].data_ptr(),
                               .slopes = shape.alibi ? slopes.data_ptr() : nullptr,
                               .first_keys = shape.packed ? first_keys.data_ptr() : nullptr,
                               .output = rows[0].data_ptr(),
                               .log_sum_exp = sums.data_ptr()};
    auto forward = common(shape, pointers);
    pair.forward.run(forward);
    pointers.gradient = rows[1].data_ptr();
    pointers.dqkv = qkv[1].data_ptr();
    auto backward = common(shape, pointers);
    pair.backward.run(backward);
  } catch (const c10::OutOfMemoryError&) {
  }
}

// The size that varies between packed micro-batches: the number of sequences, or the length of a
// single one.
int64_t& varying_size(AttentionShape& shape) {
  return shape.batch > 1 ? shape.batch : shape.sequence;
}

// [Note: packed batches of many sizes]
// Building a graph takes 0.1 s. A kind's first shape also builds sizes near those that earlier runs
// met, if any. The second shape builds those around both. Each is run once, so that later steps
// rarely meet a new size. Other sizes, such as an epoch's last step, are computed in parts: graphs
// of 1, 2, 4 and 8 sequences are built with the first shape.
class Graphs {
 public:
  Parts of(const AttentionShape& shape) {
    const std::lock_guard lock(mutex_);
    const int device = at::cuda::current_device();
    if (shape.packed && met_.insert({device, shape}).second) {
      for (const int64_t size : sizes_to_build(shape, device)) {
        AttentionShape other = shape;
        varying_size(other) = size;
        const auto [built, is_new] = pairs_.try_emplace({device, other}, other);
        if (is_new) load_kernels(other, built->second);
      }
    }
    Parts parts = built_parts(shape, device);
    if (parts.empty()) {
      parts = {{0, shape.batch, &pairs_.try_emplace({device, shape}, shape).first->second}};
    }
    return parts;
  }

 private:
  // Splits the batch greedily into sizes with a built graph; empty if impossible.
  Parts built_parts(AttentionShape shape, int device) const {
    Parts parts;
    const int64_t batch = shape.batch;
    for (int64_t first = 0; first < batch; first += parts.back().count) {
      if (first == 0 || shape.batch > batch - first) shape.batch = batch - first;
      auto built = pairs_.find({device, shape});
      while (built == pairs_.end() && shape.packed && --shape.batch > 0) {
        built = pairs_.find({device, shape});
      }
      if (built == pairs_.end()) return {};
      parts.push_back({first, shape.batch, &built->second});
    }
    return parts;
  }

  std::vector<int64_t> sizes_to_build(AttentionShape shape, int device) {
    const int64_t size = varying_size(shape);
    const int64_t step = shape.batch > 1 ? 1 : std::min(rounding_unit(size), size & -size);
    const int64_t fewest = shape.batch > 1 ? 2 : step;
    varying_size(shape) = 0;
    const AlgorithmCache::Kind kind{shape.heads,         shape.key_heads, shape.d,
                                    int64_t(shape.type), shape.by_head,   shape.alibi,
                                    shape.batch,         shape.sequence};
    std::vector<int64_t>& met = sizes_met_[{device, kind}];
    met.push_back(size);
    AlgorithmCache& stored = stored_algorithms("attention", cudnnGetVersion());
    const auto known = stored.nearest(kind, size);
    stored.settle(kind, size, {});
    constexpr size_t kMost = 24;
    auto [least, largest] = std::ranges::minmax(met);
    if (met.size() > 2) return {};
    for (const auto& [other, algorithm] : known) {
      if (met.size() > 1 || other > 2 * size || size > 2 * other) continue;
      least = std::min(least, other), largest = std::max(largest, other);
    }
    if (least < largest) {
      least = std::max(least - std::max(4 * step, least / 5), fewest) / step * step;
      largest += std::max(4 * step, largest / 5);
    }
    std::vector<int64_t> sizes;
    if (met.size() == 1 && shape.batch != 1) sizes = {1, 2, 4, 8};
    std::erase_if(sizes, [&](int64_t part) { return part >= size; });
    sizes.push_back(size);
    for (; least <= largest && sizes.size() < kMost; least += step) sizes.push_back(least);
    return sizes;
  }

  std::mutex mutex_;
  std::map<std::pair<int, AttentionShape>, Pair> pairs_;
  std::set<std::pair<int, AttentionShape>> met_;
  std::map<std::pair<int, AlgorithmCache::Kind>, std::vector<int64_t>> sizes_met_;
};

Parts parts_of(const AttentionShape& shape) {
  static auto* const graphs = new Graphs;  // never destroyed: cuDNN may be unloaded first
  return graphs->of(shape);
}

}  // namespace

bool has_attention_graph(const AttentionShape& shape) {
  if (shape.d % 8 != 0 || shape.d > 128 || shape.sequence < 2) return false;
  for (const auto& [first, count, pair] : parts_of(shape)) {
    if (pair->forward.ok() && pair->backward.ok()) continue;
    TORCH_WARN_ONCE("tessera: no cuDNN attention for sequence ", shape.sequence, ", head size ",
                    shape.d, " (", pair->forward.message(), pair->backward.message(),
                    "); the slow form is used.");
    return false;
  }
  return true;
}

void run_attention_forward(const AttentionShape& shape, const AttentionPointers& pointers) {
  for (const Part& part : parts_of(shape)) {
    auto map = common(shape, part_of(shape, pointers, part));
    part.pair->forward.run(map);
  }
}

void run_attention_backward(const AttentionShape& shape, const AttentionPointers& pointers) {
  for (const Part& part : parts_of(shape)) {
    auto map = common(shape, part_of(shape, pointers, part));
    part.pair->backward.run(map);
  }
}

}  // namespace tessera::ops::cuda
