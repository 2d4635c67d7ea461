// SPDX-License-Identifier: MIT
#include "lib/ops/cuda/gemm.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/ops/cuda/algorithm_store.h"
#include "lib/ops/cuda/gemm_search.h"
#include "lib/ops/cuda/support.h"
#include "lib/ops/gemm_autotune.h"
#include "tessera/core/error.h"

namespace tessera::ops::cuda {
namespace {

// cuBLAS needs a current context; threads of the autograd engine have none before their first
// kernel.
cublasLtHandle_t blas_handle() {
  // LibTorch's handles, whose look-up is slow
  thread_local std::map<int, cublasLtHandle_t> handles;
  cublasLtHandle_t& handle = handles[at::cuda::current_device()];
  if (handle == nullptr) {
    C10_CUDA_CHECK(cudaFree(nullptr));
    handle = at::cuda::getCurrentCUDABlasLtHandle();
  }
  return handle;
}

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

void check_cublas(cublasStatus_t status, const char* what, const Gemm& g) {
  check(status == CUBLAS_STATUS_SUCCESS, ErrorCode::kInternal, "cuBLASLt: ", what, " failed with ",
        cublasLtGetStatusString(status), " for m ", g.m, ", n ", g.n, ", k ", g.k, ".");
}

cudaDataType_t data_type(at::ScalarType type) {
  switch (type) {
    case at::kBFloat16:
      return CUDA_R_16BF;
    case at::kHalf:
      return CUDA_R_16F;
    case at::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case at::kFloat8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t epilogue_of(const Gemm& g) {
  switch (g.epilogue) {
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kGeluBias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case Epilogue::kGeluAuxBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    default:
      return CUBLASLT_EPILOGUE_DEFAULT;
  }
}

template <typename T, cublasStatus_t (*Destroy)(T)>
struct Handle {
  T value = nullptr;
  Handle() = default;
  Handle(const Handle&) = delete;
  ~Handle() {
    if (value) Destroy(value);
  }
};
using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

at::ScalarType b_type(const Gemm& g) {
  return g.b_type == at::ScalarType::Undefined ? g.type : g.b_type;
}

// In 16 bits the type alone, as stored files have it.
int64_t kind_of_types(const Gemm& g) {
  return int64_t(g.type) + (b_type(g) == g.type ? 0 : 256 * (1 + int64_t(b_type(g))));
}

// A product without its number of tokens, which is k of weight gradients and n of all others.
using Kind = std::array<int64_t, 13>;

Kind kind_of(const Gemm& g) {
  return {g.m,
          g.transpose_b ? g.n : g.k,
          g.lda,
          g.ldb,
          g.ldd,
          g.transpose_a,
          g.transpose_b,
          int64_t(g.epilogue),
          kind_of_types(g),
          int64_t(g.out_type),
          g.beta != 0,
          g.c != nullptr,
          g.aux != nullptr};
}

int64_t tokens_of(const Gemm& g) { return g.transpose_b ? g.k : g.n; }

struct Key {
  Kind kind;
  int64_t tokens;
  int device;
  bool deterministic;
  auto operator<=>(const Key&) const = default;
};

Key key_of(const Gemm& g) {
  return {kind_of(g), tokens_of(g), at::cuda::current_device(),
          at::globalContext().deterministicAlgorithms()};
}

AlgorithmCache::Kind stored_kind_of(const Gemm& g) {
  const Kind kind = kind_of(g);
  return {kind.begin(), kind.end()};
}

std::atomic<int64_t>& on_trial() {
  static std::atomic<int64_t> products = 0;
  return products;
}

// A described product and its algorithm, or the search for one ([Note: measuring in passing]). The
// descriptor's pointers change with every call.
class PreparedProduct {
 public:
  // searches null: use the library's first suggestion.
  PreparedProduct(const Gemm& g, GemmSearches* searches) : searches_(searches) {
    check_cublas(cublasLtMatmulDescCreate(&operation_.value, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "describing the product", g);
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(g));
    // In 8 bits the library would take bf16 or fp16.
    if (g.bias && g.a_scale) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(g.out_type));
    // Suggestions depend on the pointers' alignment, so real pointers are set.
    set_pointers(g);
    if (g.aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.m);
    create(a_, g.type, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda, g);
    create(b_, b_type(g), g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb, g);
    create(d_, g.out_type, g.m, g.n, g.ldd, g);
    choose(g);
  }

  // Loads kernels before run(): computes the product with each algorithm of to_load(), if that
  // changes no result.
  void load_others(const Gemm& g, void* workspace, c10::cuda::CUDAStream stream) {
    if (!searches_ || (g.beta != 0 && (!g.c || g.c == g.d)) || is_captured(stream)) return;
    for (const AlgorithmCache::Algorithm& one :
         searches_->to_load(stored_kind_of(g), tokens_of(g))) {
      if (fits(one)) issue(g, std::bit_cast<cublasLtMatmulAlgo_t>(one), workspace, stream);
    }
  }

  cublasStatus_t run(const Gemm& g, void* workspace, c10::cuda::CUDAStream stream) {
    if (search_ && search_->ended()) {
      searches_->conclude(stored_kind_of(g), search_);
      choose(g);
    }
    if (runs_put_off_ > 0) {
      runs_put_off_ = TuneEagerly::asked_for() ? 0 : runs_put_off_ - 1;
      if (runs_put_off_ == 0) choose(g, /*put_off=*/false);
    }
    if (search_ || runs_put_off_ > 0) ++on_trial();
    if (search_ && !is_captured(stream)) {
      const auto issued = [&](const AlgorithmCache::Algorithm& candidate) {
        const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(candidate);
        return issue(g, algorithm, workspace, stream) == CUBLAS_STATUS_SUCCESS;
      };
      if (search_->try_next(tokens_of(g), stream, issued)) return CUBLAS_STATUS_SUCCESS;
    }
    return issue(g, chosen_, workspace, stream);
  }

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    cublasLtMatmulDescSetAttribute(operation_.value, attribute, &value, sizeof value);
  }

  void set_pointers(const Gemm& g) {
    if (g.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
    if (g.aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g.aux);
    if (g.a_scale) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, g.a_scale);
    if (g.b_scale) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, g.b_scale);
  }

  static void create(Layout& layout, at::ScalarType type, int64_t rows, int64_t columns, int64_t ld,
                     const Gemm& g) {
    check_cublas(cublasLtMatrixLayoutCreate(&layout.value, data_type(type), rows, columns, ld),
                 "describing a matrix", g);
  }

  bool fits(const AlgorithmCache::Algorithm& stored) const {
    const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(stored);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(blas_handle(), operation_.value, a_.value, b_.value, d_.value,
                                d_.value, &algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes;
  }

  // Sets the algorithm, or a search over candidates. During the search the first candidate that
  // fits serves calls without a trial. put_off: an unfamiliar size may use other sizes' algorithm
  // for now.
  void choose(const Gemm& g, bool put_off = true) {
    search_ = nullptr;
    if (!searches_) return take_first(suggestions(g, 1));
    const AlgorithmCache::Kind kind = stored_kind_of(g);
    const int64_t tokens = tokens_of(g);
    Algorithms known = searches_->known(kind, tokens);
    const bool settled = known.size() == 1;
    std::erase_if(known, [&](const AlgorithmCache::Algorithm& one) { return !fits(one); });
    if (settled || known.size() == 1) return take_first(known.empty() ? suggestions(g, 1) : known);
    const bool suggested = known.empty();
    search_ = searches_->running(kind, tokens, suggested);
    if (search_) return take_first(suggested ? suggestions(g, 1) : known);
    if (suggested && put_off) {
      Algorithms others = searches_->instead(kind, tokens);
      std::erase_if(others, [&](const AlgorithmCache::Algorithm& one) { return !fits(one); });
      if (!others.empty()) {
        runs_put_off_ = kRunsPutOff;
        return take_first(others);
      }
    }
    constexpr int kCandidates = 12;
    if (suggested) known = suggestions(g, kCandidates);
    take_first(known);
    search_ = searches_->begin(kind, std::move(known), suggested, tokens);
  }

  void take_first(const Algorithms& candidates) {
    chosen_ = std::bit_cast<cublasLtMatmulAlgo_t>(candidates.front());
  }

  Algorithms suggestions(const Gemm& g, int most) const {
    Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    check_cublas(cublasLtMatmulPreferenceCreate(&preference.value), "creating a preference", g);
    cublasLtMatmulPreferenceSetAttribute(preference.value, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &kWorkspaceBytes, sizeof kWorkspaceBytes);
    // Callers guarantee 16 bytes (fits()); the library would assume 256.
    constexpr uint32_t kAlignment = 16;
    for (const auto operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      check_cublas(cublasLtMatmulPreferenceSetAttribute(preference.value, operand, &kAlignment,
                                                        sizeof kAlignment),
                   "saying how operands are aligned", g);
    }
    std::vector<cublasLtMatmulHeuristicResult_t> results(most);
    int found = 0;
    check_cublas(cublasLtMatmulAlgoGetHeuristic(blas_handle(), operation_.value, a_.value, b_.value,
                                                d_.value, d_.value, preference.value, most,
                                                results.data(), &found),
                 "asking for an algorithm", g);
    check(found > 0, ErrorCode::kInternal, "cuBLASLt offers no algorithm for m ", g.m, ", n ", g.n,
          ", k ", g.k, ".");
    Algorithms suggested;
    for (int i = 0; i < found; ++i) {
      suggested.push_back(std::bit_cast<AlgorithmCache::Algorithm>(results[i].algo));
    }
    return suggested;
  }

  cublasStatus_t issue(const Gemm& g, const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                       cudaStream_t stream) {
    const float one = 1;
    set_pointers(g);
    return cublasLtMatmul(blas_handle(), operation_.value, &one, g.a, a_.value, g.b, b_.value,
                          &g.beta, g.c ? g.c : g.d, d_.value, g.d, d_.value, &algorithm, workspace,
                          kWorkspaceBytes, stream);
  }

  // Calls; some steps of a model, or one of many micro-batches.
  static constexpr int kRunsPutOff = 256;
  GemmSearches* const searches_;
  int runs_put_off_ = 0;  // calls left before a search starts
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
  Layout a_, b_, d_;
  std::shared_ptr<GemmSearch> search_;
  cublasLtMatmulAlgo_t chosen_{};
};

// Never destroyed: CUDA may be unloaded before static destructors.
struct Cache {
  std::mutex mutex;
  std::map<Key, PreparedProduct> products;
  std::map<int, GemmSearches> searches;  // by device
  std::map<std::pair<int, cudaStream_t>, at::Tensor> workspaces;
  const bool tuning = [] {
    const char* value = std::getenv("TESSERA_GEMM_TUNING");
    return !value || std::string_view(value) != "0";
  }();

  static Cache& instance() {
    static Cache* const cache = new Cache;
    return *cache;
  }

  // Null for deterministic algorithms: the fastest one, and so the last bits, may differ between
  // runs.
  GemmSearches* searches_on(int device) {
    if (!tuning || at::globalContext().deterministicAlgorithms()) return nullptr;
    auto found = searches.find(device);
    if (found == searches.end()) {
      found = searches.emplace(device, stored_algorithms("matrix products", cublasLtGetVersion()))
                  .first;
    }
    return &found->second;
  }
};

}  // namespace

int64_t products_in_tuning() { return on_trial(); }

void run_gemm(const Gemm& gemm) {
  if (gemm.m == 0 || gemm.n == 0) return;
  // Adding an empty product to d changes nothing.
  if (gemm.k == 0 && gemm.beta == 1 && !gemm.c) return;
  const auto stream = at::cuda::getCurrentCUDAStream();
  Cache& cache = Cache::instance();
  // Held while the product is enqueued, since descriptors carry this call's pointers.
  const std::lock_guard lock(cache.mutex);
  // A captured graph replays on the default stream.
  const cudaStream_t runs_on = is_captured(stream)
                                   ? c10::cuda::getDefaultCUDAStream(stream.device_index()).stream()
                                   : stream.stream();
  at::Tensor& workspace = cache.workspaces[{stream.device_index(), runs_on}];
  if (!workspace.defined()) {
    workspace =
        at::empty({int64_t(kWorkspaceBytes)}, at::TensorOptions(stream.device()).dtype(at::kByte));
  }
  const Key key = key_of(gemm);
  auto found = cache.products.find(key);
  if (found == cache.products.end()) {
    found = cache.products.try_emplace(key, gemm, cache.searches_on(stream.device_index())).first;
    found->second.load_others(gemm, workspace.data_ptr(), stream);
  }
  check_cublas(found->second.run(gemm, workspace.data_ptr(), stream), "the product", gemm);
}

}  // namespace tessera::ops::cuda
