// SPDX-License-Identifier: MIT
#include "lib/interop/hub_cache.h"

#include <stdlib.h>

#include <filesystem>
#include <optional>

#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::programs;

namespace {

// Sets an environment variable for one test; nullptr: unset.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* old = ::getenv(name)) old_ = old;
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~Variable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* const name_;
  std::optional<std::string> old_;
};

}  // namespace

TEST_CASE("a model's name on the Hub is found where huggingface_hub keeps it") {
  const TempDir dir;
  const std::string snapshot = "models--org--name/snapshots/0123abc";
  for (const char* hub : {"hub/", "home/.cache/huggingface/hub/", "given/"}) {
    std::filesystem::create_directories(dir.path(hub + snapshot));
    std::filesystem::create_directories(dir.path(std::string(hub) + "models--org--name/refs"));
    dir.write(std::string(hub) + "models--org--name/refs/main", "0123abc\n");
  }
  const Variable cache("XDG_CACHE_HOME", nullptr), old("HUGGINGFACE_HUB_CACHE", nullptr),
      home("HOME", dir.path("home").c_str());
  {
    const Variable hf("HF_HOME", nullptr), hub("HF_HUB_CACHE", nullptr);
    CHECK(find_in_hub_cache("org/name") == dir.path("home/.cache/huggingface/hub/" + snapshot));
    CHECK(find_in_hub_cache("org/other") == "org/other");
    CHECK(find_in_hub_cache("org/name/") == "org/name/");
    CHECK(find_in_hub_cache("./org/name") == "./org/name");
  }
  const Variable hf("HF_HOME", dir.path("").c_str());
  {
    const Variable hub("HF_HUB_CACHE", nullptr);
    CHECK(std::filesystem::equivalent(find_in_hub_cache("org/name"), dir.path("hub/" + snapshot)));
  }
  const Variable hub("HF_HUB_CACHE", dir.path("given").c_str());
  CHECK(find_in_hub_cache("org/name") == dir.path("given/" + snapshot));
  dir.write("given/models--org--name/refs/main", "gone");
  CHECK(find_in_hub_cache("org/name") == "org/name");
  CHECK_THAT(how_to_fetch("org/name"),
             test::contains("hf download org/name") && test::contains(dir.path("given")));
  CHECK(how_to_fetch("/models/name").empty());
}
