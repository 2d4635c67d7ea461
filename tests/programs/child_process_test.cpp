// SPDX-License-Identifier: MIT
#include "lib/run/child_process.h"

#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "tests/support/test.hpp"

using namespace tessera::programs;

namespace {

struct Variables {
  explicit Variables(std::map<std::string, std::string> values) : values(std::move(values)) {
    for (const auto& [name, value] : this->values) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : values) unsetenv(name.c_str());
  }
  std::map<std::string, std::string> values;
};

}  // namespace

TEST_CASE("child process: mpirun's settings stay outside a job, the launcher's variables never") {
  const Variables settings({{"OMPI_MCA_plm_rsh_agent", "my-ssh"},
                            {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                            {"HYDRA_LAUNCHER", "fork"},
                            {"SLURM_PROCID", "3"},
                            {"RANK", "1"},
                            {"TESSERA_OTHER", "x"}});
  const auto outside = environment_without_launcher();
  CHECK(outside.at("OMPI_MCA_plm_rsh_agent") == "my-ssh");
  CHECK(outside.at("HYDRA_LAUNCHER") == "fork");
  CHECK(outside.contains("OMPI_ALLOW_RUN_AS_ROOT"));
  CHECK_FALSE(outside.contains("SLURM_PROCID"));
  CHECK_FALSE(outside.contains("RANK"));

  const Variables job({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_MCA_ess", "pmi"}});
  const auto inside = environment_without_launcher();
  for (const auto& [name, value] : inside) {
    CHECK_FALSE(name.starts_with("OMPI_"));
    CHECK_FALSE(name.starts_with("HYDRA_"));
  }
  CHECK(inside.at("TESSERA_OTHER") == "x");
}
