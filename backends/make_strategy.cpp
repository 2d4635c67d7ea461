#include "tessera/backends/data_parallel/ddp.h"
#include "tessera/backends/fsdp/fsdp.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/zero/zero_stage1.h"
#include "tessera/backends/zero/zero_stage2.h"
#include "tessera/backends/zero/zero_stage3.h"
#include "tessera/core/error.h"

namespace tessera {

std::vector<std::string> strategy_names() {
  return {"single", "ddp", "zero1", "zero2", "zero3", "fsdp"};
}

std::unique_ptr<Strategy> make_strategy(const ParallelConfig& config, const DeviceMesh& mesh) {
  Communicator& data = mesh.axis(Axis::kData);
  check(mesh.extent(Axis::kPipeline) == 1 && mesh.extent(Axis::kTensor) == 1,
        ErrorCode::kInvalidArgument, "mesh pipeline ", mesh.extent(Axis::kPipeline), " x data ",
        data.size(), " x tensor ", mesh.extent(Axis::kTensor),
        ": this version has no pipeline or tensor parallelism; set both extents to 1");
  check(config.prefetch_blocks >= 0, ErrorCode::kInvalidArgument, "prefetch_blocks is ",
        config.prefetch_blocks, "; it must not be negative");
  check(config.bucket_bytes > 0, ErrorCode::kInvalidArgument, "bucket_bytes is ",
        config.bucket_bytes, "; it must be positive");
  const std::string& name = config.strategy;
  if (name == "single") {
    check(data.size() == 1, ErrorCode::kInvalidArgument, "strategy single runs on one rank, but ",
          data.size(), " were launched; use ddp, zero1, zero2, zero3 or fsdp");
    return std::make_unique<Ddp>(config, data);
  }
  if (name == "ddp") return std::make_unique<Ddp>(config, data);
  if (name == "zero1") return std::make_unique<ZeroStage1>(config, data);
  if (name == "zero2") return std::make_unique<ZeroStage2>(config, data);
  if (name == "zero3") return std::make_unique<ZeroStage3>(config, data);
  if (name == "fsdp") return std::make_unique<Fsdp>(config, data);
  std::string known;
  for (const auto& candidate : strategy_names()) known += (known.empty() ? "" : ", ") + candidate;
  fail(ErrorCode::kInvalidArgument, "strategy \"", name, "\" is unknown; use one of ", known);
}

}  // namespace tessera
