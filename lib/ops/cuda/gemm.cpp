#include "lib/ops/cuda/gemm.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAException.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/ops/cuda/plan_store.h"
#include "tessera/core/error.h"
#include "tessera/core/rounding.h"

namespace tessera::ops::cuda {
namespace {

// cuBLAS wants a current context, and a thread of the autograd engine has none before its first
// kernel.
cublasLtHandle_t blas_handle() {
  thread_local const cudaError_t context = cudaFree(nullptr);
  C10_CUDA_CHECK(context);
  return at::cuda::getCurrentCUDABlasLtHandle();
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

// A product but for its number of tokens, which is k of weight gradients and n of all others.
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
          int64_t(g.type),
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

PlanCache::Kind stored_kind_of(const Gemm& g) {
  const Kind kind = kind_of(g);
  return {kind.begin(), kind.end()};
}

using Algorithms = std::vector<PlanCache::Plan>;

// What is known about products on a device, by kind and rounded number of tokens.
struct Measured {
  PlanCache& fastest;
  // Of sizes for which all suggestions were tried.
  std::map<PlanCache::Kind, std::map<int64_t, Algorithms>> good;
};

// What is good for one number of tokens is worth a try for the other.
bool alike(int64_t tokens, int64_t other) { return tokens <= 2 * other && other <= 2 * tokens; }

// A described product and the algorithm chosen for it. The descriptor's pointers change with every
// call.
//
// [Note: measuring in passing] The first calls of a shape take several algorithms in turn, between
// two events each; when the device has come to the last of them, the fastest is kept. No product is
// computed more than once, and the host never waits. A short sleep before each lets the host get
// ahead of the device, so that the time between the events is the product's. The first shape of a
// kind tries what the library suggests; those with about as many tokens try the best of these only,
// whose kernels are loaded.
class Plan {
 public:
  // measured null: the library's first suggestion is taken.
  Plan(const Gemm& g, Measured* measured) : measured_(measured) {
    check_cublas(cublasLtMatmulDescCreate(&operation_.value, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "describing the product", g);
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(g));
    // The suggestions depend on the pointers' alignment, so they are asked for with real ones.
    set_pointers(g);
    if (g.aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.m);
    create(a_, g.type, g.transpose_a ? g.k : g.m, g.transpose_a ? g.m : g.k, g.lda, g);
    create(b_, g.type, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.ldb, g);
    create(d_, g.out_type, g.m, g.n, g.ldd, g);
    if (measured_) take_known(g);
    if (candidates_.empty()) suggest(g);
  }

  cublasStatus_t run(const Gemm& g, void* workspace, c10::cuda::CUDAStream stream) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (candidates_.size() > 1) cudaStreamIsCapturing(stream, &capture);
    if (candidates_.size() == 1 || capture != cudaStreamCaptureStatusNone) {
      return issue(g, candidates_[0], workspace, stream);
    }
    while (issued_ < trials_each_ * candidates_.size()) {
      const size_t candidate = issued_++ % candidates_.size();
      Trial trial{candidate};
      at::cuda::sleep(kSleepCycles);
      trial.begin.record(stream);
      if (issue(g, candidates_[candidate], workspace, stream) != CUBLAS_STATUS_SUCCESS) continue;
      trial.end.record(stream);
      trials_.push_back(std::move(trial));
      return CUBLAS_STATUS_SUCCESS;
    }
    choose(g);
    return issue(g, candidates_[0], workspace, stream);
  }

 private:
  static constexpr int kCandidates = 12;
  static constexpr size_t kGood = 4;
  static constexpr int64_t kSleepCycles = 50'000;  // some 25 microseconds
  struct Trial {
    size_t candidate;
    at::cuda::CUDAEvent begin{cudaEventDefault}, end{cudaEventDefault};
  };

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    cublasLtMatmulDescSetAttribute(operation_.value, attribute, &value, sizeof value);
  }

  void set_pointers(const Gemm& g) {
    if (g.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
    if (g.aux) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g.aux);
  }

  static void create(Layout& layout, at::ScalarType type, int64_t rows, int64_t columns, int64_t ld,
                     const Gemm& g) {
    check_cublas(cublasLtMatrixLayoutCreate(&layout.value, data_type(type), rows, columns, ld),
                 "describing a matrix", g);
  }

  bool fits(const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(blas_handle(), operation_.value, a_.value, b_.value, d_.value,
                                d_.value, &algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes;
  }

  // The fastest one as the only candidate where it is known, else those that were good for about as
  // many tokens.
  void take_known(const Gemm& g) {
    const PlanCache::Kind kind = stored_kind_of(g);
    const int64_t size = rounded_size(tokens_of(g));
    Algorithms known;
    if (const auto fastest = measured_->fastest.find(kind, size)) {
      known = {*fastest};
    } else {
      const auto& tried = measured_->good[kind];
      const auto nearest = std::ranges::min_element(
          tried, {}, [&](const auto& entry) { return std::abs(entry.first - size); });
      if (nearest != tried.end() && alike(size, nearest->first)) known = nearest->second;
      for (const auto& [other, plan] : measured_->fastest.nearest(kind, size)) {
        if (alike(size, other)) known.push_back(plan);
      }
    }
    Algorithms taken;
    for (const PlanCache::Plan& plan : known) {
      if (taken.size() == kGood || std::ranges::count(taken, plan) > 0) continue;
      const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(plan);
      if (!fits(algorithm)) continue;
      taken.push_back(plan);
      candidates_.push_back(algorithm);
    }
    trials_each_ = 2;
  }

  void suggest(const Gemm& g) {
    const int most = measured_ ? kCandidates : 1;
    suggested_ = true;
    trials_each_ = 3;
    Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    check_cublas(cublasLtMatmulPreferenceCreate(&preference.value), "creating a preference", g);
    cublasLtMatmulPreferenceSetAttribute(preference.value, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &kWorkspaceBytes, sizeof kWorkspaceBytes);
    std::vector<cublasLtMatmulHeuristicResult_t> results(most);
    int found = 0;
    check_cublas(cublasLtMatmulAlgoGetHeuristic(blas_handle(), operation_.value, a_.value, b_.value,
                                                d_.value, d_.value, preference.value, most,
                                                results.data(), &found),
                 "asking for an algorithm", g);
    for (int i = 0; i < found; ++i) candidates_.push_back(results[i].algo);
    check(!candidates_.empty(), ErrorCode::kInternal, "cuBLASLt offers no algorithm for m ", g.m,
          ", n ", g.n, ", k ", g.k, ".");
  }

  cublasStatus_t issue(const Gemm& g, const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                       cudaStream_t stream) {
    const float one = 1;
    set_pointers(g);
    return cublasLtMatmul(blas_handle(), operation_.value, &one, g.a, a_.value, g.b, b_.value,
                          &g.beta, g.c ? g.c : g.d, d_.value, g.d, d_.value, &algorithm, workspace,
                          kWorkspaceBytes, stream);
  }

  // Keeps the fastest candidate, or what another rank has chosen, as soon as all trials have ended.
  void choose(const Gemm& g) {
    if (trials_.empty() ||
        !std::ranges::all_of(trials_, [](const Trial& trial) { return trial.end.query(); })) {
      return;
    }
    std::vector<std::pair<float, size_t>> times;  // least, of each candidate
    for (size_t i = 0; i < candidates_.size(); ++i) {
      times.emplace_back(std::numeric_limits<float>::infinity(), i);
    }
    for (const Trial& trial : trials_) {
      float& least = times[trial.candidate].first;
      least = std::min(least, trial.begin.elapsed_time(trial.end));
    }
    std::ranges::sort(times);
    Algorithms good;
    for (size_t i = 0; i < std::min(kGood, times.size()); ++i) {
      good.push_back(std::bit_cast<PlanCache::Plan>(candidates_[times[i].second]));
    }
    trials_.clear();
    const PlanCache::Kind kind = stored_kind_of(g);
    const int64_t size = rounded_size(tokens_of(g));
    const auto settled =
        std::bit_cast<cublasLtMatmulAlgo_t>(measured_->fastest.settle(kind, size, good.front()));
    candidates_ = {fits(settled) ? settled : candidates_[times[0].second]};
    if (suggested_) measured_->good[kind].try_emplace(size, std::move(good));
  }

  Measured* const measured_;
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
  Layout a_, b_, d_;
  std::vector<cublasLtMatmulAlgo_t> candidates_;  // one: chosen
  std::vector<Trial> trials_;
  size_t trials_each_ = 0, issued_ = 0;
  bool suggested_ = false;  // the candidates are the library's
};

// Lives as long as the process: CUDA may be gone when static objects are destroyed.
struct Cache {
  std::mutex mutex;
  std::map<Key, Plan> plans;
  std::map<int, Measured> measured;  // by device
  std::map<std::pair<int, cudaStream_t>, at::Tensor> workspaces;
  const bool tuning = [] {
    const char* value = std::getenv("TESSERA_GEMM_TUNING");
    return !value || std::string_view(value) != "0";
  }();

  static Cache& instance() {
    static Cache* const cache = new Cache;
    return *cache;
  }

  // What is fastest differs from run to run, and with it the last bits.
  Measured* measured_on(int device) {
    if (!tuning || at::globalContext().deterministicAlgorithms()) return nullptr;
    auto found = measured.find(device);
    if (found == measured.end()) {
      PlanCache& stored = stored_plans("matrix products", cublasLtGetVersion());
      found = measured.emplace(device, Measured{stored, {}}).first;
    }
    return &found->second;
  }
};

}  // namespace

void run_gemm(const Gemm& gemm) {
  if (gemm.m == 0 || gemm.n == 0) return;
  if (gemm.k == 0 && gemm.beta == 1 && !gemm.c) return;  // nothing to add to what is there
  const auto stream = at::cuda::getCurrentCUDAStream();
  Cache& cache = Cache::instance();
  // Held while the product is issued: descriptors carry this call's pointers.
  const std::lock_guard lock(cache.mutex);
  at::Tensor& workspace = cache.workspaces[{stream.device_index(), stream.stream()}];
  if (!workspace.defined()) {
    workspace =
        at::empty({int64_t(kWorkspaceBytes)}, at::TensorOptions(stream.device()).dtype(at::kByte));
  }
  const Key key = key_of(gemm);
  auto found = cache.plans.find(key);
  if (found == cache.plans.end()) {
    found = cache.plans.try_emplace(key, gemm, cache.measured_on(stream.device_index())).first;
  }
  check_cublas(found->second.run(gemm, workspace.data_ptr(), stream), "the product", gemm);
}

}  // namespace tessera::ops::cuda
