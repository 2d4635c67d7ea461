// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>

#include <functional>
#include <vector>

#include "lib/ops/cuda/gemm_search.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::ops::cuda;

namespace {

// Indices of the candidates used by this many calls.
std::vector<size_t> tried(GemmSearch& search, int calls, const std::function<void()>& after_call) {
  const auto stream = at::cuda::getCurrentCUDAStream();
  std::vector<size_t> trials;
  for (int call = 0; call < calls; ++call) {
    search.try_next(256, stream, [&](const ops::AlgorithmCache::Algorithm& algorithm) {
      trials.push_back(algorithm[0]);
      return true;
    });
    after_call();
  }
  stream.synchronize();
  return trials;
}

}  // namespace

TEST_CASE("products on the GPU try every algorithm as often") {
  GemmSearch search({{1}, {2}, {3}, {4}}, /*suggested=*/false, /*tokens=*/256);
  at::cuda::sleep(500'000'000);  // puts the host ahead
  CHECK(tried(search, 20, [] {}) == std::vector<size_t>{1, 2, 3, 4, 1, 2, 3, 4});
  CHECK(search.ended());
  CHECK(search.fastest_first().size() == 4);
}

TEST_CASE("products on the GPU try algorithms in every twelfth call where the device waits") {
  const auto wait = [] { at::cuda::getCurrentCUDAStream().synchronize(); };
  GemmSearch search({{1}, {2}}, /*suggested=*/false, /*tokens=*/256);
  CHECK(tried(search, 24, wait) == std::vector<size_t>{1, 2});
  CHECK_FALSE(search.ended());
  CHECK(tried(search, 24, wait) == std::vector<size_t>{1, 2});
  CHECK(search.ended());
  GemmSearch suggested({{1}, {2}}, /*suggested=*/true, /*tokens=*/256);
  CHECK(tried(suggested, 6, wait).size() == 6);
}

TEST_CASE("products on the GPU try algorithms in every call where they are to be recorded") {
  const auto wait = [] { at::cuda::getCurrentCUDAStream().synchronize(); };
  GemmSearch search({{1}, {2}}, /*suggested=*/false, /*tokens=*/256);
  const ops::TuneEagerly at_once;
  CHECK(tried(search, 6, wait) == std::vector<size_t>{1, 2, 1, 2});
  CHECK(search.ended());
}

TEST_CASE("products on the GPU of a size unlike all before take what is good for others once") {
  ops::AlgorithmCache fastest("", "test");
  GemmSearches searches(fastest);
  fastest.settle({4}, 8192, {1});
  CHECK(searches.instead({4}, 1024).empty());  // the first product of this kind in the process
  searches.to_load({4}, 8192);
  CHECK((searches.instead({4}, 1024) == Algorithms{{1}}));
  CHECK(searches.instead({4}, 1024).empty());
  CHECK(searches.instead({4}, 1536).empty());
  CHECK((searches.instead({4}, 256) == Algorithms{{1}}));
  searches.begin({4}, {{2}, {3}}, /*suggested=*/true, 64);
  CHECK(searches.instead({4}, 80).empty());  // its trials are running
  CHECK(searches.instead({5}, 1024).empty());
}

TEST_CASE("what earlier runs chose for products on the GPU is loaded once") {
  ops::AlgorithmCache fastest("", "test");
  GemmSearches searches(fastest);
  fastest.settle({4}, 256, {1});
  fastest.settle({4}, 320, {2});
  fastest.settle({4}, 384, {1});
  fastest.settle({4}, 1024, {5});
  fastest.settle({4}, 4096, {3});
  CHECK((searches.to_load({4}, 300) == Algorithms{{2}, {1}, {5}}));
  CHECK(searches.to_load({4}, 300).empty());
}
