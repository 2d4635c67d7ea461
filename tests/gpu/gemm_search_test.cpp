#include "lib/ops/cuda/gemm_search.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>

#include <vector>

#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::ops::cuda;

TEST_CASE("products on the GPU try algorithms in one of several calls, each as often") {
  const auto stream = at::cuda::getCurrentCUDAStream();
  const Algorithms candidates{{1}, {2}, {3}, {4}};
  for (const size_t interval : {1, 6}) {
    INFO("interval " << interval);
    GemmSearch search(candidates, /*suggested=*/false, /*tokens=*/256, interval);
    std::vector<size_t> trials, calls;
    for (size_t call = 0; call < 100; ++call) {
      search.try_next(256, stream, [&](const ops::PlanCache::Plan& plan) {
        trials.push_back(plan[0]);
        calls.push_back(call);
        return true;
      });
    }
    CHECK(trials == std::vector<size_t>{1, 2, 3, 4, 1, 2, 3, 4});
    for (size_t i = 0; i < calls.size(); ++i) CHECK(calls[i] == i * interval);
    stream.synchronize();
    CHECK(search.ended());
    CHECK(search.fastest_first().size() == candidates.size());
  }
}

TEST_CASE("only the first products of a kind on the GPU try an algorithm each") {
  const auto stream = at::cuda::getCurrentCUDAStream();
  ops::PlanCache fastest("", "test");
  GemmSearches searches(fastest);
  const auto trials = [&](const ops::PlanCache::Kind& kind, bool suggested, int64_t tokens) {
    int count = 0;
    const auto search = searches.begin(kind, {{1}, {2}}, suggested, tokens);
    for (int call = 0; call < 6; ++call) {
      search->try_next(tokens, stream, [&](const ops::PlanCache::Plan&) { return ++count > 0; });
    }
    return count;
  };
  CHECK(trials({1}, true, 256) == 6);
  CHECK(trials({1}, false, 512) == 1);
  CHECK(trials({1}, true, 4096) == 1);
  CHECK(trials({2}, true, 256) == 6);
  fastest.settle({3}, 256, {7});  // by an earlier run
  CHECK(trials({3}, true, 4096) == 1);
  // What earlier runs chose is loaded once, for about as many tokens.
  fastest.settle({4}, 256, {1});
  fastest.settle({4}, 320, {2});
  fastest.settle({4}, 384, {1});
  fastest.settle({4}, 4096, {3});
  CHECK((searches.to_load({4}, 300) == Algorithms{{2}, {1}}));
  CHECK(searches.to_load({4}, 300).empty());
  stream.synchronize();
}
