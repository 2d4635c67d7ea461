#include "lib/ops/cuda/gemm.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cublasLt.h>

#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/core/error.h"

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
constexpr int kCandidates = 12;

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

using Key = std::array<int64_t, 15>;

Key key_of(const Gemm& g) {
  return {at::cuda::current_device(),
          g.m,
          g.n,
          g.k,
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

// A described product and the algorithm chosen for it. The descriptor's pointers change with every
// call.
class Plan {
 public:
  explicit Plan(const Gemm& g) {
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
    Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    check_cublas(cublasLtMatmulPreferenceCreate(&preference.value), "creating a preference", g);
    cublasLtMatmulPreferenceSetAttribute(preference.value, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &kWorkspaceBytes, sizeof kWorkspaceBytes);
    candidates_.resize(kCandidates);
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        blas_handle(), operation_.value, a_.value, b_.value, d_.value, d_.value, preference.value,
        kCandidates, candidates_.data(), &found);
    check_cublas(status, "asking for an algorithm", g);
    check(found > 0, ErrorCode::kInternal, "cuBLASLt offers no algorithm for m ", g.m, ", n ", g.n,
          ", k ", g.k, ".");
    candidates_.resize(found);
  }

  cublasStatus_t run(const Gemm& g, void* workspace, cudaStream_t stream) {
    return run_candidate(g, candidates_[chosen_], workspace, stream);
  }

  void tune(Gemm g, void* workspace, cudaStream_t stream) {
    // What is fastest differs from run to run, and with it the last bits.
    if (at::globalContext().deterministicAlgorithms()) return;
    void* scratch = nullptr;
    if (g.beta != 0 && !g.c) {  // would change the caller's sum
      if (cudaMalloc(&scratch, size_t(g.ldd) * g.n * at::elementSize(g.out_type)) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
      }
      cudaMemsetAsync(scratch, 0, size_t(g.ldd) * g.n * at::elementSize(g.out_type), stream);
      g.d = scratch;
    }
    float best = std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const float time = measure(g, candidates_[i], best, workspace, stream);
      if (time < best) best = time, chosen_ = i;
    }
    if (scratch) cudaFree(scratch);
  }

 private:
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

  cublasStatus_t run_candidate(const Gemm& g, const cublasLtMatmulHeuristicResult_t& candidate,
                               void* workspace, cudaStream_t stream) {
    const float one = 1;
    set_pointers(g);
    return cublasLtMatmul(blas_handle(), operation_.value, &one, g.a, a_.value, g.b, b_.value,
                          &g.beta, g.c ? g.c : g.d, d_.value, g.d, d_.value, &candidate.algo,
                          workspace, kWorkspaceBytes, stream);
  }

  // Milliseconds for one product; gives up early on what is far slower than best.
  float measure(const Gemm& g, const cublasLtMatmulHeuristicResult_t& candidate, float best,
                void* workspace, cudaStream_t stream) {
    const float never = std::numeric_limits<float>::infinity();
    if (run_candidate(g, candidate, workspace, stream) != CUBLAS_STATUS_SUCCESS) return never;
    cudaEvent_t start, stop;
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
    float result = never;
    for (const int count : {1, 4, 4}) {
      cudaEventRecord(start, stream);
      for (int i = 0; i < count; ++i) run_candidate(g, candidate, workspace, stream);
      cudaEventRecord(stop, stream);
      float time = never;
      if (cudaEventSynchronize(stop) == cudaSuccess) cudaEventElapsedTime(&time, start, stop);
      if (count > 1) result = std::min(result, time / count);
      if (time / count > 2 * best) break;
    }
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    return result;
  }

  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
  Layout a_, b_, d_;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates_;
  size_t chosen_ = 0;
};

// Lives as long as the process: CUDA may be gone when static objects are destroyed.
struct Cache {
  std::mutex mutex;
  std::map<Key, Plan> plans;
  std::map<std::pair<int, cudaStream_t>, at::Tensor> workspaces;
  const bool tuning = [] {
    const char* value = std::getenv("TESSERA_GEMM_TUNING");
    return !value || std::string_view(value) != "0";
  }();

  static Cache& instance() {
    static Cache* const cache = new Cache;
    return *cache;
  }
};

}  // namespace

void run_gemm(const Gemm& gemm) {
  if (gemm.m == 0 || gemm.n == 0) return;
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
    found = cache.plans.try_emplace(key, gemm).first;
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &capture);
    if (cache.tuning && capture == cudaStreamCaptureStatusNone) {
      found->second.tune(gemm, workspace.data_ptr(), stream);
    }
  }
  check_cublas(found->second.run(gemm, workspace.data_ptr(), stream), "the product", gemm);
}

}  // namespace tessera::ops::cuda
