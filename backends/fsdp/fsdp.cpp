#include "tessera/backends/fsdp/fsdp.h"

#include "tessera/core/error.h"

namespace tessera {

Fsdp::Fsdp(const ParallelConfig& config, Communicator& data) : ShardingStrategy(config, data) {
  const int ranks = config.shard_ranks;
  if (ranks == 0 || ranks == 1 || ranks == data.size()) return;
  check(ranks > 0 && data.size() % ranks == 0, ErrorCode::kInvalidArgument, "fsdp: shard_ranks is ",
        ranks, "; it must divide the data axis of ", data.size(), " ranks");
  group_ = data.split(data.rank() / ranks, data.rank());
  replicas_ = data.split(data.rank() % ranks, data.rank());
  set_hybrid(*group_, *replicas_);
}

int64_t Fsdp::extra_bytes_sent() const {
  return group_ == nullptr ? 0 : group_->bytes_sent() + replicas_->bytes_sent();
}

ShardingStrategy::Cut Fsdp::cut() const {
  return {.shards = config().shard_ranks == 1 ? 1 : shards().size(),
          .unit_numel = config().unit_numel};
}

std::unique_ptr<ParameterStore> Fsdp::make_parameters() {
  StoreOptions options = store_options(config().precision.parameter);
  if (cut().shards == 1 && !options.host_shards) return ShardingStrategy::make_parameters();
  options.keep_gathered = !config().reshard_after_forward;
  return std::make_unique<GatheredParameters>(units(), shards(), options);
}

std::unique_ptr<GradientStore> Fsdp::make_gradients() {
  if (cut().shards == 1 || config().reduce_at_boundary) return ShardingStrategy::make_gradients();
  return std::make_unique<ShardedGradients>(units(), shards(),
                                            store_options(config().precision.gradient_dtype()));
}

}  // namespace tessera
