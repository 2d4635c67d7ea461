// SPDX-License-Identifier: MIT
#include "lib/comm/nccl/nccl_transport.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "lib/comm/collective_timeout.h"
#include "lib/comm/nccl/nccl_communicator.h"
#include "lib/core/host_name.h"
#include "lib/core/switch.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::nccl {
namespace {

std::string gpu_identity(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device) == cudaSuccess, ErrorCode::kUnavailable,
        "GPU ", device, " does not answer");
  std::string uuid;
  for (const char byte : properties.uuid.bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    uuid += digits;
  }
  return concat(properties.name, " ", uuid, " on host ", host_name());
}

void refuse_shared_gpus(ControlChannel& control, int device) {
  std::map<std::string, int> owners;
  const auto gpus = control.exchange(gpu_identity(device));
  for (size_t r = 0; r < gpus.size(); ++r) {
    const auto [owner, is_new] = owners.emplace(gpus[r], static_cast<int>(r));
    check(is_new, ErrorCode::kInvalidArgument, "ranks ", owner->second, " and ", r,
          " would share one GPU (", gpus[r],
          "); start at most one rank a GPU, or choose --backend mpi for the CPU");
  }
}

// For tests: NCCL refuses two ranks of a host on a GPU. With host names of their own they talk
// through the network.
void name_host_by_rank(int rank) {
  setenv("NCCL_HOSTID", concat(host_name(), "-rank", rank).c_str(), /*overwrite=*/1);
}

// [Note: device queues]
// Streams share the device's hardware queues, eight by default. Work queued behind a receive that
// waits for its message waits too, and a pipeline rank has more streams than that. Read when the
// process first touches CUDA; a value set by the user stays.
constexpr int kDeviceQueues = 32;
void ask_for_all_device_queues() {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(kDeviceQueues).c_str(), /*overwrite=*/0);
}

// [Note: a peer that refuses]
// NCCL tries 34 times to connect to a dead process, sleeping longer each time. It does not notice
// an abort meanwhile, which frees memory that it uses. With the default 100 ms this takes a minute,
// with 4 ms 2.4 s, for which Handle::abort() waits. A value set by the user stays.
void ask_for_short_retries() { setenv("NCCL_SOCKET_RETRY_SLEEP_MSEC", "4", /*overwrite=*/0); }

// Fewer queues, such as Megatron's CUDA_DEVICE_MAX_CONNECTIONS=1, make streams wait for each other.
void warn_about_few_queues(const LaunchInfo& launch) {
  const char* queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (launch.rank != 0 || launch.world_size == 1 || queues == nullptr) return;
  if (std::atoi(queues) >= kDeviceQueues) return;
  log(LogLevel::kWarning, "CUDA_DEVICE_MAX_CONNECTIONS=", queues,
      " makes streams share hardware queues: messages of a pipeline may wait for each other; unset "
      "it, or set it to ",
      kDeviceQueues);
}

// TESSERA_GATHER_COPIES; none without it: on two H200s both ways were equally fast.
size_t least_copied_bytes() {
  const char* text = std::getenv("TESSERA_GATHER_COPIES");
  if (text == nullptr) return 0;
  char* end = nullptr;
  const long long bytes = std::strtoll(text, &end, 10);
  check(*text != '\0' && *end == '\0' && bytes >= 0, ErrorCode::kInvalidArgument,
        "TESSERA_GATHER_COPIES=", text, " is not a number of bytes; 0 stands for no copies");
  return static_cast<size_t>(bytes);
}

}  // namespace

std::string unusable_because(const LaunchInfo&) {
  ask_for_all_device_queues();
  if (c10::cuda::device_count() > 0) return "";
  if (dlopen("libcuda.so.1", RTLD_LAZY) == nullptr) {
    return concat("the NVIDIA driver is missing (", dlerror(), ")");
  }
  return "there is no GPU";
}

std::unique_ptr<Communicator> connect(const TransportContext& context) {
  const LaunchInfo& launch = context.launch;
  ask_for_short_retries();
  // Some launchers show each rank one GPU; each rank then takes its first.
  const int index = launch.local_rank % c10::cuda::device_count();
  const bool shares_gpus = is_on_in_environment("TESSERA_SHARE_GPUS");
  require_same_on_all_ranks(*context.control, "TESSERA_SHARE_GPUS", shares_gpus ? "1" : "0");
  shares_gpus ? name_host_by_rank(launch.rank) : refuse_shared_gpus(*context.control, index);
  warn_about_few_queues(launch);
  at::globalContext().lazyInitDevice(at::kCUDA);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
  int version = 0;
  ncclGetVersion(&version);
  require_same_on_all_ranks(*context.control, "the NCCL version", std::to_string(version));

  const size_t least_copied = least_copied_bytes();
  require_same_on_all_ranks(*context.control, "TESSERA_GATHER_COPIES",
                            std::to_string(least_copied));

  auto job = std::make_shared<Job>();
  job->least_copied = least_copied;
  job->signal = context.signal;
  job->abort = context.abort;
  job->log = context.log;
  job->report = context.report;
  job->post = context.post;
  job->take = context.take;
  job->watch = std::make_unique<Watch>(index, context.signal, context.report, collective_timeout());

  ncclUniqueId id{};
  if (launch.rank == 0) {
    check(ncclGetUniqueId(&id) == ncclSuccess, ErrorCode::kUnavailable,
          "ncclGetUniqueId failed: ", ncclGetLastError(nullptr));
  }
  const std::string bytes =
      context.control->exchange(std::string(id.internal, sizeof id.internal)).front();
  std::memcpy(id.internal, bytes.data(), sizeof id.internal);
  auto handle = std::make_shared<Handle>(id, launch.rank, launch.world_size, context.signal);
  return std::make_unique<NcclCommunicator>("world", at::Device(at::kCUDA, index), launch.rank,
                                            launch.world_size, std::move(handle), std::move(job));
}

std::string library() {
  int version = 0;  // 22809 is 2.28.9
  ncclGetVersion(&version);
  return concat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace tessera::nccl
