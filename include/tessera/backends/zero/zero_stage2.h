#pragma once
#include "tessera/backends/zero/zero_stage1.h"

namespace tessera {

// ZeRO stage 2: gradients are sharded too. A block's full gradient lives only until it is
// reduce-scattered, every micro-batch; with reduce_at_boundary full gradients are kept over the
// accumulation and reduced once, as in stage 1.
class ZeroStage2 : public ZeroStage1 {
 public:
  using ZeroStage1::ZeroStage1;
  std::string name() const override { return "zero2"; }

 protected:
  std::unique_ptr<GradientStore> make_gradients() override;
};

}  // namespace tessera
